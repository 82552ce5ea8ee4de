// prepared_data.h: data of a test with the lines of data that were prepared.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "armillary/train/data.h"

namespace armillary::train {

/// Data that says how it was prepared.
class PreparedData : public Data {
 public:
  PreparedData(const Data& data, std::vector<std::string> lines)
      : data_(data), lines_(std::move(lines)) {}
  std::int64_t vocab_size() const override { return data_.vocab_size(); }
  Sequence at(std::int64_t index) const override { return data_.at(index); }
  std::vector<std::string> identity() const override { return lines_; }

 private:
  const Data& data_;
  std::vector<std::string> lines_;
};

}  // namespace armillary::train
