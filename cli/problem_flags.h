// problem_flags.h: the flags that describe a problem and a strategy, shared by all verbs that make
// plans. Values are kept as text and parsed by the library, so that its errors are those of the
// command line too.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::cli {

/// The flags as the user wrote them. An empty text is a flag that was not given; its meaning stands
/// in the help text. Parsed strictly by the functions below. The values here are the defaults of
/// all verbs, except that of `pass`, which each verb sets.
struct ProblemFlags {
  std::string strategy = "ring";
  std::string world = "4";
  std::string batch = "1";
  std::string seq = "4096";
  std::string kv_seq;
  std::string heads = "8";
  std::string kv_heads;
  std::string head_dim = "64";
  std::string value_dim;
  std::string dtype = "bf16";
  std::string mask = "causal";
  std::string layout = "contiguous";
  std::string pass;
  std::string lower = "all";
  std::string transfer_dtype = "accumulator";
  bool return_lse = false;
};

/// The group of the help text in which add_problem_flags puts them.
inline constexpr const char* kProblemGroup = "Problem";
/// Adds the flags to a verb. Each must not be given an empty value. `flags` must live as long as
/// `verb`.
void add_problem_flags(CLI::App& verb, ProblemFlags& flags);

/// A check for flags that may be left out, but must not have an empty value.
CLI::Validator not_empty();

/// Reads a whole number of at least 1. `flag` names the flag in the error.
/// @throws InvalidArgument for anything else.
int parse_count(std::string_view flag, const std::string& text);

/// The problem that the flags describe, validated. @throws InvalidArgument as the parsers do.
plan::Problem problem(const ProblemFlags& flags);
/// The problem of the flags with another length; nothing if its mask cannot have it.
std::optional<plan::Problem> with_length(ProblemFlags flags, std::int64_t seq);
/// The passes of `--pass`; `both` is forward and backward. @throws InvalidArgument.
std::vector<plan::Pass> passes(const ProblemFlags& flags);

/// Does nothing if the problem, with the strategy and the passes of the flags, fits the devices.
/// @throws InvalidArgument as check_legal() and cost::check_fits().
void check_fits(const ProblemFlags& flags, const sim::Cluster& cluster);

/// The given passes of a strategy, lowered by the given lowering passes: one plan for each pass, in
/// their order. @throws InvalidArgument if the strategy cannot solve the problem.
std::vector<plan::Plan> lowered_plans(const plan::Problem& problem, const plan::Strategy& strategy,
                                      const std::vector<plan::Pass>& passes,
                                      const std::vector<plan::Lowering>& lowerings);

/// The plans of `--strategy`, for `--pass`, after `--lower`. @throws InvalidArgument.
std::vector<plan::Plan> lowered_plans(const ProblemFlags& flags);

}  // namespace armillary::cli
