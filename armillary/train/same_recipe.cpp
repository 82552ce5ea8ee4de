#include "armillary/train/same_recipe.h"

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/proof/digest.h"

namespace armillary::train {
namespace {

using Lines = std::vector<std::string>;

std::string text_of(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

/// That of `root`, on every rank.
std::string text_of_rank(comm::Communicator& comm, std::string text, int root) {
  auto size = static_cast<std::int64_t>(text.size());
  comm::broadcast(comm, comm::array(std::span(&size, 1)), root);
  text.resize(static_cast<std::size_t>(size));
  comm::broadcast(comm, std::as_writable_bytes(std::span(text)), root);
  return text;
}

/// The first lines that differ.
std::pair<std::string_view, std::string_view> difference(std::string_view a, std::string_view b) {
  const auto next = [](std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
  };
  while (!a.empty() || !b.empty()) {
    const std::string_view of_a = next(a);
    const std::string_view of_b = next(b);
    if (of_a != of_b) return {of_a, of_b};
  }
  return {};
}

}  // namespace

void expect_same_recipe(comm::Communicator& comm, const Recipe& recipe) {
  Lines lines = settings(recipe);
  lines.insert(lines.begin(), fmt::format("version = {}", proof::version()));
  const std::string mine = text_of(lines);
  const std::string first = text_of_rank(comm, mine, 0);
  std::int64_t same = mine == first ? 1 : 0;
  std::vector<std::int64_t> all(comm.world());
  comm::all_gather(comm, comm::array(std::span(&same, 1)), comm::array(std::span(all)));
  const auto other = std::ranges::find(all, 0);
  if (other == all.end()) return;
  const auto rank = static_cast<int>(other - all.begin());
  const std::string its = text_of_rank(comm, mine, rank);
  const auto [of_first, of_other] = difference(first, its);
  fail<InvalidArgument>("train: rank 0 has {}, rank {} has {}; one recipe is required", of_first,
                        rank, of_other);
}

}  // namespace armillary::train
