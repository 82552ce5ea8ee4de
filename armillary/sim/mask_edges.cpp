#include "armillary/sim/mask_edges.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace armillary::sim {
namespace {

constexpr std::int64_t kRowsOfASample = 64;
constexpr std::int64_t kMostSamples = 8;  // Of a block.
constexpr double kSteepest = 2;           // Keys a row.

/// The position of a token of a block.
std::int64_t position(const plan::Runs& runs, std::int64_t token) {
  for (const plan::Run& run : runs) {
    if (token < run.tokens()) return run.begin + token / run.width * run.step + token % run.width;
    token -= run.tokens();
  }
  return runs.back().last();
}

/// Tokens of a run before a position.
std::int64_t tokens_before(const plan::Run& run, std::int64_t position) {
  if (position <= run.begin) return 0;
  const std::int64_t stripes = (position - run.begin) / run.step;
  const std::int64_t rest = std::min(position - run.begin - stripes * run.step, run.width);
  return std::min(stripes * run.width + rest, run.tokens());
}

/// One row of queries, counted over all of the op, and its visible keys among those of the op.
struct Row {
  double number = 0;
  double first = 0;
  double last = 0;
};

}  // namespace

MaskEdges mask_edges(const plan::Mask& mask, const plan::Blocks& blocks, const plan::BlockIds& q,
                     const plan::BlockIds& kv) {
  const auto keys_before = [&](std::int64_t position) {
    std::int64_t keys = 0;
    for (const int b : kv) {
      for (const plan::Run& run : blocks.kv[b].runs) keys += tokens_before(run, position);
    }
    return static_cast<double>(keys);
  };
  MaskEdges edges;
  double rows = 0;     // Of the blocks so far.
  double covered = 0;  // Between two samples.
  std::optional<Row> before;
  for (const int a : q) {
    const plan::Block& block = blocks.q[a];
    const std::int64_t tokens = block.tokens();
    const std::int64_t samples = std::clamp(
        tokens / kRowsOfASample, q.size() == 1 ? std::int64_t{2} : std::int64_t{1}, kMostSamples);
    for (std::int64_t s = 0; s < samples; ++s) {
      const std::int64_t token = (2 * s + 1) * tokens / (2 * samples);
      const std::int64_t at = position(block.runs, token);
      const std::vector<plan::Interval> keys = mask.keys_of({at, at + 1});
      Row row{.number = rows + static_cast<double>(token)};
      if (!keys.empty()) {
        row.first = keys_before(keys.front().begin);
        row.last = keys_before(keys.back().end);
      }
      if (before) {
        const double between = row.number - before->number;
        const auto slanted = [&](double moved) {
          return moved != 0 && std::abs(moved) <= kSteepest * between ? between : 0;
        };
        edges.first += slanted(row.first - before->first);
        edges.last += slanted(row.last - before->last);
        covered += between;
      }
      before = row;
    }
    rows += static_cast<double>(tokens);
  }
  // The rows before the first sample and behind the last are like the others.
  const double scale = covered > 0 ? rows / covered : 0;
  return {.first = scale * edges.first, .last = scale * edges.last};
}

}  // namespace armillary::sim
