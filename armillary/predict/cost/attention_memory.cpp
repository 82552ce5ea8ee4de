// attention_memory.cpp: the bytes of a problem from its lowered programs, and a search for the
// longest sequence that fits: with the rank that needs most, and again with another one if that
// does not fit at the length found.
#include "armillary/predict/cost/attention_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::cost {
namespace {

/// Longest sequence with which one rank fits, between 0, which fits, and `too_long`. The need is
/// close to linear in the length, so guesses by proportion end within a few steps; every other step
/// halves the range.
std::optional<std::int64_t> longest(const FitQuestion& question, std::int64_t too_long,
                                    MemoryNeed need, double limit) {
  std::int64_t fits = 0;
  auto needed = static_cast<double>(need.bytes);
  for (bool halve = false; too_long - fits > 1; halve = !halve) {
    const auto by_share = static_cast<std::int64_t>(static_cast<double>(too_long) * limit / needed);
    const std::int64_t guess =
        std::clamp(halve ? (fits + too_long) / 2 : by_share, fits + 1, too_long - 1);
    const std::optional<plan::Problem> problem = question.problem(guess);
    if (!problem) return std::nullopt;
    const plan::Planner planner(*problem, question.strategy);
    const auto bytes = static_cast<double>(memory_need(planner, question.passes, need.rank));
    if (bytes <= limit) {
      fits = guess;
    } else {
      too_long = guess;
      needed = bytes;
    }
  }
  return fits;
}

/// Longest sequence with which all ranks fit. Another rank may need most at another length; then it
/// decides.
std::optional<std::int64_t> longest_of_all(const FitQuestion& question, MemoryNeed need,
                                           double limit) {
  std::int64_t too_long = question.seq;
  for (;;) {
    const std::optional<std::int64_t> fits = longest(question, too_long, need, limit);
    if (!fits || *fits == 0) return fits;
    need = memory_need(plan::Planner(*question.problem(*fits), question.strategy), question.passes);
    if (static_cast<double>(need.bytes) <= limit) return fits;
    too_long = *fits;
  }
}

/// The bytes of the slots that count, of one rank in the pass that needs most.
template <class Counts>
std::int64_t need(const plan::Planner& planner, const std::vector<plan::Pass>& passes,
                  plan::Rank rank, const Counts& counts) {
  std::int64_t most = 0;
  for (const plan::Pass pass : passes) {
    const plan::RankProgram program =
        lower(planner.problem(), planner.blocks(), planner.program(pass, rank));
    std::int64_t bytes = 0;
    for (const plan::Slot& slot : program.slots) bytes += counts(slot) ? slot.bytes : 0;
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace

std::int64_t memory_need(const plan::Planner& planner, const std::vector<plan::Pass>& passes,
                         plan::Rank rank) {
  return need(planner, passes, rank, [](const plan::Slot&) { return true; });
}

std::int64_t slot_need(const plan::Planner& planner, const std::vector<plan::Pass>& passes,
                       plan::Rank rank) {
  return need(planner, passes, rank, [](const plan::Slot& slot) { return !slot.external; });
}

void KeptBytes::grow(const KeptBytes& other) {
  caller = std::max(caller, other.caller);
  caller_output = std::max(caller_output, other.caller_output);
  layer = std::max(layer, other.layer);
  output = std::max(output, other.output);
}

KeptBytes kept_by_attention(const plan::Problem& problem, const plan::Blocks& blocks,
                            const plan::RankProgram& forward) {
  const auto bytes = [&](const plan::Tile& tile) { return bytes_of(problem, blocks, tile); };
  const auto is_out = [&](int id) { return forward.tiles[id].tensor == plan::Tensor::Out; };
  KeptBytes kept_bytes;
  // The caller's: inputs, Out, and log-sum-exps of the rows of Out.
  const int out = *std::ranges::find_if(forward.outputs, is_out);
  plan::Tile lse = forward.tiles[out];
  lse.tensor = plan::Tensor::Lse;
  kept_bytes.caller_output = bytes(forward.tiles[out]) + bytes(lse);
  kept_bytes.caller = kept_bytes.caller_output;
  for (const int id : forward.inputs) kept_bytes.caller += bytes(forward.tiles[id]);
  // The saved ones. The product behind attention keeps the caller's Out.
  for (const int id : forward.saved) {
    const std::int64_t saved = bytes(forward.tiles[id]);
    kept_bytes.layer += saved;
    if (is_out(id) || forward.tiles[id].tensor == plan::Tensor::Lse) kept_bytes.output += saved;
  }
  if (std::ranges::count(forward.saved, out) == 0) kept_bytes.layer += bytes(forward.tiles[out]);
  return kept_bytes;
}

KeptBytes kept_by_attention(const plan::Planner& planner, plan::Rank rank) {
  return kept_by_attention(planner.problem(), planner.blocks(),
                           planner.program(plan::Pass::Forward, rank));
}

AttentionBytes attention_bytes(double slots, const KeptBytes& kept_bytes) {
  AttentionBytes bytes(slots);
  bytes.layer = static_cast<double>(kept_bytes.layer - kept_bytes.caller);
  bytes.output = static_cast<double>(kept_bytes.output - kept_bytes.caller_output);
  return bytes;
}

// Alike ranks have programs with slots of the same sizes, so one of each class is asked.
MemoryNeed memory_need(const plan::Planner& planner, const std::vector<plan::Pass>& passes) {
  MemoryNeed most;
  for (const plan::Pass pass : passes) {
    const std::optional<plan::Fold> alike = planner.fold(pass);
    const int classes = alike ? alike->classes() : planner.problem().world;
    const auto rank_of = [&](int c) { return alike ? alike->representative(c) : c; };
    std::vector<std::int64_t> needs(classes);
    plan::parallel_for_ranks(classes,
                             [&](int c) { needs[c] = memory_need(planner, {pass}, rank_of(c)); });
    const auto entry = std::max_element(needs.begin(), needs.end());
    const plan::Rank rank = rank_of(static_cast<int>(entry - needs.begin()));
    if (*entry > most.bytes || (*entry == most.bytes && rank < most.rank)) {
      most = {.rank = rank, .bytes = *entry};
    }
  }
  return most;
}

std::string does_not_fit(double needed_bytes, double limit_bytes) {
  // Hundredths of a GiB; a limit that is a whole number of them may miss it by rounding.
  constexpr double kHundredth = (1 << 30) / 100.0;
  constexpr double kRounding = 1e-6;
  return fmt::format("does not fit: needs {:.2f} GiB, has {:.2f}",
                     std::ceil(needed_bytes / kHundredth) / 100,
                     std::floor(limit_bytes / kHundredth + kRounding) / 100);
}

void check_fits(const FitQuestion& question, const sim::Cluster& cluster) {
  const std::optional<plan::Problem> problem = question.problem(question.seq);
  ARMILLARY_CHECK(problem.has_value());
  const plan::Planner planner(*problem, question.strategy);
  const MemoryNeed need = memory_need(planner, question.passes);
  const double limit = cluster.device.memory_bytes;
  const auto bytes = static_cast<double>(need.bytes);
  if (bytes <= limit) return;
  const std::optional<std::int64_t> fits = longest_of_all(question, need, limit);
  fail<InvalidArgument>("{} on {}: {}: {}{}", to_string(question.strategy), cluster.name,
                        count_of(question.seq, "token"), does_not_fit(bytes, limit),
                        fits ? fmt::format(", the longest sequence that fits is {}", *fits) : "");
}

}  // namespace armillary::cost
