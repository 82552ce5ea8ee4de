#include "armillary/train/token_data.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace armillary::train {

TokenData::TokenData(const std::string& folder, corpus::CorpusPart part, std::int64_t seed)
    : corpus_(folder, part), part_(part), seed_(seed) {}

Sequence TokenData::at(std::int64_t index) const {
  corpus::PackedSequence packed = corpus_.at(index, static_cast<std::uint64_t>(seed_));
  const at::Tensor tokens = at::empty({seq_len()}, at::kLong);
  const at::Tensor labels = at::empty({seq_len()}, at::kLong);
  auto* const token = tokens.mutable_data_ptr<std::int64_t>();
  auto* const label = labels.mutable_data_ptr<std::int64_t>();
  std::int64_t begin = 0;
  for (std::size_t piece = 0; piece < packed.pieces.size(); ++piece) {
    const std::int64_t end = begin + packed.pieces[piece];
    const bool is_last = piece + 1 == packed.pieces.size();
    const bool is_padding = is_last && packed.has_padding;
    for (std::int64_t i = begin; i < end; ++i) {
      token[i] = packed.tokens[static_cast<std::size_t>(i)];
      const bool has_next = i + 1 < end && !is_padding;
      label[i] = has_next ? packed.tokens[static_cast<std::size_t>(i + 1)] : model::kIgnoredLabel;
    }
    begin = end;
  }
  if (packed.next != corpus::kNothingFollows) label[seq_len() - 1] = packed.next;
  return {.fields = {{model::kTokens, tokens}, {model::kLabels, labels}},
          .documents = std::move(packed.pieces)};
}

std::vector<std::string> TokenData::identity() const {
  std::vector<std::string> lines = corpus::identity_of(corpus_.index());
  lines.push_back("part = " + std::string(corpus::to_string(part_)));
  return lines;
}

}  // namespace armillary::train
