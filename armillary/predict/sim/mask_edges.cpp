// Sampled rows of queries stand for the rows around them. An edge at a row is slanted if it is
// one key further in the mask's next row; it is within a block of keys, or between two of them.
#include "armillary/predict/sim/mask_edges.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace armillary::sim {
namespace {

constexpr std::int64_t kRowsOfASample = 64;
constexpr std::int64_t kMostSamples = 8;  ///< Samples of a block.
constexpr double kSteepest = 2;           ///< Keys a row.

/// The position of a token of a block.
std::int64_t position(const plan::Runs& runs, std::int64_t token) {
  for (const plan::Run& run : runs) {
    if (token < run.tokens()) return run.begin + token / run.width * run.step + token % run.width;
    token -= run.tokens();
  }
  return runs.back().last();
}

/// Blocks of keys that ascend in position.
struct Stretch {
  std::vector<plan::Run> runs;
  std::int64_t tokens = 0;
  /// Keys before each end of the ranges of the last sampled row.
  std::vector<std::int64_t> before;

  std::int64_t keys_before(std::int64_t position) const {
    const plan::Run row = plan::run_of({position, position + 1});
    std::int64_t keys = 0;
    for (const plan::Run& run : runs) keys += plan::count_pairs(row, run, {.hi = -1});
    return keys;
  }
  /// Whether a run has keys on both sides of the position.
  bool has_within(std::int64_t position) const {
    return std::ranges::any_of(
        runs, [&](const plan::Run& run) { return run.begin < position && position <= run.last(); });
  }
};

std::vector<Stretch> stretches_of(const plan::Blocks& blocks, const plan::BlockIds& kv) {
  std::vector<Stretch> stretches;
  for (const int b : kv) {
    const plan::Runs& runs = blocks.kv[b].runs;
    if (stretches.empty() || runs.front().begin <= stretches.back().runs.back().last()) {
      stretches.emplace_back();
    }
    std::vector<plan::Run>& all = stretches.back().runs;
    all.insert(all.end(), runs.begin(), runs.end());
    stretches.back().tokens += blocks.kv[b].tokens();
  }
  return stretches;
}

/// Ends of the ranges of keys that a row sees: begin, end, begin, end, ..
std::vector<std::int64_t> ends_of(const plan::Mask& mask, std::int64_t row) {
  std::vector<std::int64_t> ends;
  for (const plan::Interval& keys : mask.keys_of({row, row + 1})) {
    ends.push_back(keys.begin);
    ends.push_back(keys.end);
  }
  return ends;
}

/// A sampled row: its position, its number in the op, and the rows that it stands for.
struct RowSample {
  std::int64_t at = 0;
  double number = 0;
  double rows = 0;
};

std::vector<RowSample> samples_of(const plan::Blocks& blocks, const plan::BlockIds& q) {
  std::vector<RowSample> samples;
  double rows = 0;
  for (const int a : q) {
    const plan::Block& block = blocks.q[a];
    const std::int64_t tokens = block.tokens();
    const std::int64_t count = std::clamp(tokens / kRowsOfASample, std::int64_t{1}, kMostSamples);
    for (std::int64_t s = 0; s < count; ++s) {
      const std::int64_t token = (2 * s + 1) * tokens / (2 * count);
      samples.push_back({.at = position(block.runs, token),
                         .number = rows + static_cast<double>(token),
                         .rows = static_cast<double>(tokens) / static_cast<double>(count)});
    }
    rows += static_cast<double>(tokens);
  }
  return samples;
}

}  // namespace

MaskEdges mask_edges(const plan::Mask& mask, const plan::Blocks& blocks, const plan::BlockIds& q,
                     const plan::BlockIds& kv) {
  std::vector<Stretch> stretches = stretches_of(blocks, kv);
  MaskEdges edges;
  RowSample last;
  for (const RowSample& sample : samples_of(blocks, q)) {
    const std::vector<std::int64_t> ends = ends_of(mask, sample.at);
    // The last row has no next one. It is the one before it that counts.
    const std::int64_t next = sample.at + 1 < mask.q_len() ? sample.at + 1 : sample.at - 1;
    const std::vector<std::int64_t> beside =
        next < 0 ? std::vector<std::int64_t>() : ends_of(mask, next);
    const double most = sample.at > last.at ? kSteepest * (sample.number - last.number) : 0;
    for (Stretch& stretch : stretches) {
      std::vector<std::int64_t> before;
      before.reserve(ends.size());
      for (const std::int64_t end : ends) before.push_back(stretch.keys_before(end));
      for (std::size_t i = 0; i < ends.size(); ++i) {
        if (beside.size() != ends.size() || std::abs(beside[i] - ends[i]) != 1) continue;
        const bool is_between = before[i] > 0 && before[i] < stretch.tokens &&
                                stretch.before.size() == ends.size() &&
                                before[i] != stretch.before[i];
        const auto moved = [&] { return std::abs(before[i] - stretch.before[i]); };
        if (stretch.has_within(ends[i]) || (is_between && static_cast<double>(moved()) <= most)) {
          (i % 2 == 0 ? edges.first : edges.last) += sample.rows;
        }
      }
      stretch.before = std::move(before);
    }
    last = sample;
  }
  return edges;
}

}  // namespace armillary::sim
