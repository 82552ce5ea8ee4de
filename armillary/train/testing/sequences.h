// sequences.h: sequences of tokens as lists of numbers, for tests.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/train/data.h"

namespace armillary::train {

using Numbers = std::vector<std::int64_t>;

inline Sequence sequence_of(const Numbers& tokens, const Numbers& labels,
                            const Numbers& documents) {
  return {.fields = {{model::kTokens, at::tensor(tokens, at::kLong)},
                     {model::kLabels, at::tensor(labels, at::kLong)}},
          .documents = documents};
}

/// The numbers of an int64 field.
inline Numbers numbers_of(const Sequence& sequence, const std::string& field) {
  const at::Tensor values = sequence.fields.at(field).contiguous();
  const auto* const begin = values.const_data_ptr<std::int64_t>();
  return {begin, begin + values.numel()};
}

inline Numbers tokens_of(const Sequence& sequence) {
  return numbers_of(sequence, model::kTokens);
}
inline Numbers labels_of(const Sequence& sequence) {
  return numbers_of(sequence, model::kLabels);
}

}  // namespace armillary::train
