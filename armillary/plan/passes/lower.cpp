#include "armillary/plan/passes/lower.h"

#include <algorithm>
#include <string>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan {
namespace {

/// The pass of that name, or an error with the nearest name.
Lowering parse_lowering(std::string_view name) {
  std::vector<std::string> names;
  for (const Lowering lowering : kLowerings) {
    if (to_string(lowering) == name) return lowering;
    names.emplace_back(to_string(lowering));
  }
  names.insert(names.end(), {"none", "all"});
  if (name == "none" || name == "all") {
    fail<InvalidArgument>("lower: {} stands among others; alone is required", quote(name));
  }
  const std::string nearest = nearest_name(name, names);
  fail<InvalidArgument>("lower: {} is no pass; {} is required{}", quote(name), list_names(names),
                        nearest.empty() ? "" : "; nearest: '" + nearest + "'");
}

}  // namespace

std::string_view to_string(Lowering lowering) {
  constexpr std::array<std::string_view, 4> kNames{"fuse", "alias", "coalesce", "zero_copy"};
  return kNames.at(static_cast<std::size_t>(lowering));
}

std::vector<Lowering> parse_lowerings(std::string_view text) {
  if (text == "none") return {};
  if (text == "all") return {kLowerings.begin(), kLowerings.end()};
  // Names between commas; an empty name is an unknown one.
  std::vector<Lowering> lowerings;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const Lowering lowering = parse_lowering(text.substr(begin, end - begin));
    if (std::count(lowerings.begin(), lowerings.end(), lowering) > 0) {
      fail<InvalidArgument>("lower: {} names {} twice; once is required", quote(text),
                            to_string(lowering));
    }
    lowerings.push_back(lowering);
    begin = end + 1;
  }
  return lowerings;
}

// The order matters: `fuse` removes sums that `alias` would otherwise place, and `zero_copy` looks
// at slots and messages as they are in the end.
RankProgram lower(const Problem& problem, const Blocks& blocks, RankProgram program,
                  const std::vector<Lowering>& lowerings) {
  const auto applies = [&](Lowering lowering) {
    return std::count(lowerings.begin(), lowerings.end(), lowering) > 0;
  };
  if (applies(Lowering::Fuse)) program = fuse(problem, blocks, std::move(program));
  if (applies(Lowering::Alias)) program = alias(problem, blocks, std::move(program));
  if (applies(Lowering::Coalesce)) program = coalesce(std::move(program));
  if (applies(Lowering::ZeroCopy)) program = zero_copy(std::move(program));
  return program;
}

Plan lower(Plan plan, const std::vector<Lowering>& lowerings) {
  parallel_for_ranks(static_cast<int>(plan.ranks.size()), [&](Rank rank) {
    RankProgram& program = plan.ranks[rank];
    program = lower(plan.problem, plan.blocks, std::move(program), lowerings);
  });
  return plan;
}

}  // namespace armillary::plan
