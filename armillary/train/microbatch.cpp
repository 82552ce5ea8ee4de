#include "armillary/train/microbatch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::train {
namespace {

/// Whether both have rows of one shape and dtype.
bool is_like(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes().slice(1) == b.sizes().slice(1) && a.scalar_type() == b.scalar_type();
}

/// "[3, 2] of Float": the shape and dtype of a row.
std::string rows_text(const at::Tensor& values) {
  return fmt::format("[{}] of {}", fmt::join(values.sizes().slice(1), ", "),
                     c10::toString(values.scalar_type()));
}

/// Rows of sequences from number `first` on, one after another, as a batch of one.
model::Fields batch_of(const std::vector<model::Fields>& sequences, std::int64_t first) {
  model::Fields batch;
  for (const auto& [name, values] : sequences.front()) {
    std::vector<at::Tensor> rows;
    rows.reserve(sequences.size());
    for (const model::Fields& sequence : sequences) {
      rows.push_back(sequence.at(name));
      if (!is_like(rows.back(), values)) {
        fail<InvalidArgument>(
            "data: field {} of sequences {} and {} has rows of {} and {}; equal ones are required "
            "in one pass; nearest: training.local_batch_size = 1",
            name, first, first + std::ssize(rows) - 1, rows_text(values), rows_text(rows.back()));
      }
    }
    batch.set(name, at::cat(rows, 0).unsqueeze(0));
  }
  return batch;
}

/// A digest of digests, which depends on their order; that of one is itself.
std::uint64_t joined_digest(const std::vector<SequenceParts>& sequences) {
  constexpr std::uint64_t kOddFactor = 0x9E3779B97F4A7C15;
  std::uint64_t digest = 0;
  for (const SequenceParts& parts : sequences) digest = digest * kOddFactor + parts.digest;
  return sequences.size() == 1 ? digest : digest | 1;
}

}  // namespace

Microbatch read_microbatch(const Data& data, std::int64_t first, const model::Model& model,
                           const Recipe& recipe, const MicrobatchPlace& place) {
  const std::int64_t seq_len = recipe.training.seq_len;
  const SequenceShape shape{seq_len, model.fields()};
  std::vector<SequenceParts> sequences;
  std::vector<plan::Mask> masks;
  for (std::int64_t i = first; i < first + recipe.training.local_batch_size; ++i) {
    sequences.push_back(checked_parts(data, i, shape));
    masks.push_back(sequence_mask(recipe.parallelism.mask, sequences.back().documents));
  }
  Microbatch result;
  result.problem = attention_problem(recipe, place.attention, joined_mask(masks));
  result.problem.world = place.world;
  result.digest = joined_digest(sequences);

  // A rank has its tokens in ascending order, so those of one sequence are neighbours.
  const auto shards = plan::shards(result.problem.layout, result.problem.mask, place.world);
  std::vector<std::int64_t> positions =
      plan::positions(shards.q[static_cast<std::size_t>(place.rank)]);
  std::vector<model::Fields> rows;
  std::vector<std::int64_t> numbers;
  auto begin = positions.begin();
  for (const SequenceParts& parts : sequences) {
    const std::int64_t before = seq_len * static_cast<std::int64_t>(rows.size());
    const auto end = std::lower_bound(begin, positions.end(), before + seq_len);
    for (auto position = begin; position != end; ++position) *position -= before;
    numbers.insert(numbers.end(), static_cast<std::size_t>(end - begin),
                   static_cast<std::int64_t>(rows.size()));
    rows.push_back(parts.rows({begin, end}));
    result.targets += model.targets(rows.back());
    begin = end;
  }
  result.batch = batch_of(rows, first);
  result.positions_L = at::tensor(positions, at::kLong);
  result.sequence_L = at::tensor(numbers, at::kLong);
  result.sequences = static_cast<std::int64_t>(sequences.size());
  return result;
}

}  // namespace armillary::train
