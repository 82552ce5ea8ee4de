// whole_sequences.h: sequences of one document each, without fields: all that an estimate reads of
// data if the mask does not follow documents.
#pragma once

#include <cstdint>

#include "armillary/train/data.h"

namespace armillary::train {

class WholeSequences : public Data {
 public:
  explicit WholeSequences(std::int64_t seq_len) : seq_len_(seq_len) {}

  std::int64_t vocab_size() const override { return 0; }
  Sequence at(std::int64_t /*index*/) const override {
    return {.fields = {}, .documents = {seq_len_}};
  }

 private:
  std::int64_t seq_len_;
};

}  // namespace armillary::train
