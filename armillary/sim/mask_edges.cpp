// Sampled rows of queries are walked through in the order of the op. An edge is slanted between two
// samples if it moves with the rows; blocks of keys that interleave have an edge each.
#include "armillary/sim/mask_edges.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
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

/// Tokens of a run before a position.
std::int64_t tokens_before(const plan::Run& run, std::int64_t position) {
  if (position <= run.begin) return 0;
  const std::int64_t stripes = (position - run.begin) / run.step;
  const std::int64_t rest = std::min(position - run.begin - stripes * run.step, run.width);
  return std::min(stripes * run.width + rest, run.tokens());
}

/// Visible keys of a row of queries in a stretch: those from `first` to `last`, counted in it.
struct Keys {
  double first = 0;
  double last = 0;
};

/// Blocks of keys that ascend in position, and their edges so far.
struct Stretch {
  std::vector<plan::Run> runs;
  Keys before;  ///< Those of the last sample.
  MaskEdges edges;

  double keys_before(std::int64_t position) const {
    std::int64_t keys = 0;
    for (const plan::Run& run : runs) keys += tokens_before(run, position);
    return static_cast<double>(keys);
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
  }
  return stretches;
}

}  // namespace

MaskEdges mask_edges(const plan::Mask& mask, const plan::Blocks& blocks, const plan::BlockIds& q,
                     const plan::BlockIds& kv) {
  std::vector<Stretch> stretches = stretches_of(blocks, kv);
  double rows = 0;  // Rows of the blocks so far.
  std::optional<double> first_sample;
  double last_sample = 0;
  for (const int a : q) {
    const plan::Block& block = blocks.q[a];
    const std::int64_t tokens = block.tokens();
    const std::int64_t least = q.size() == 1 ? 2 : 1;
    const std::int64_t samples = std::clamp(tokens / kRowsOfASample, least, kMostSamples);
    for (std::int64_t s = 0; s < samples; ++s) {
      const std::int64_t token = (2 * s + 1) * tokens / (2 * samples);
      const std::int64_t at = position(block.runs, token);
      const std::vector<plan::Interval> visible = mask.keys_of({at, at + 1});
      const double sample = rows + static_cast<double>(token);
      const double between = sample - last_sample;
      for (Stretch& stretch : stretches) {
        Keys keys;
        if (!visible.empty()) {
          keys.first = stretch.keys_before(visible.front().begin);
          keys.last = stretch.keys_before(visible.back().end);
        }
        if (first_sample) {
          const auto slanted = [&](double moved) {
            return moved != 0 && std::abs(moved) <= kSteepest * between ? between : 0;
          };
          stretch.edges.first += slanted(keys.first - stretch.before.first);
          stretch.edges.last += slanted(keys.last - stretch.before.last);
        }
        stretch.before = keys;
      }
      if (!first_sample) first_sample = sample;
      last_sample = sample;
    }
    rows += static_cast<double>(tokens);
  }
  MaskEdges edges;
  const double covered = first_sample ? last_sample - *first_sample : 0;
  if (covered == 0) return edges;
  // The rows before the first sample and behind the last are like the others.
  const double scale = rows / covered;
  for (const Stretch& stretch : stretches) {
    edges.first += scale * stretch.edges.first;
    edges.last += scale * stretch.edges.last;
  }
  return edges;
}

}  // namespace armillary::sim
