// changed_decoder.h: a decoder that says of its parameters what a test says.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "armillary/model/decoder.h"

namespace armillary::train {

using ChangeParameters = std::function<void(std::vector<model::Parameter>& parameters)>;

class ChangedDecoder : public model::Decoder {
 public:
  ChangedDecoder(const model::DecoderOptions& options, ChangeParameters change)
      : model::Decoder(options), change_(std::move(change)) {}
  std::vector<model::Parameter> parameters() const override {
    std::vector<model::Parameter> all = model::Decoder::parameters();
    if (change_) change_(all);
    return all;
  }

 private:
  ChangeParameters change_;
};

}  // namespace armillary::train
