// problem_flags.h: the flags that describe a problem and a strategy, shared by plan and verify.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategy.h"

namespace armillary::cli {

/// As written by the user; parsed strictly by `problem()`. Empty: not given.
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
  std::string wire = "accumulator";
  bool return_lse = false;
};

/// Adds them in a group of the help text.
inline constexpr const char* kProblemGroup = "Problem";
void add_problem_flags(CLI::App& verb, ProblemFlags& flags);

/// For flags whose absence means something: they may be left out, but not be empty.
CLI::Validator not_empty();

/// A flag that counts: 1 or more. @throws InvalidArgument.
int parse_count(std::string_view flag, const std::string& text);

/// @throws InvalidArgument as the parsers do.
plan::Problem problem(const ProblemFlags& flags);
std::vector<plan::Pass> passes(const ProblemFlags& flags);
/// All passes of a strategy, lowered.
std::vector<plan::Plan> lowered_plans(const plan::Problem& problem, const plan::Strategy& strategy,
                                      const std::vector<plan::Pass>& passes,
                                      const std::vector<plan::Lowering>& lowerings);

/// The plans of `--strategy`, for `--pass`, after `--lower`.
std::vector<plan::Plan> lowered_plans(const ProblemFlags& flags);

}  // namespace armillary::cli
