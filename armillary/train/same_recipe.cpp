#include "armillary/train/same_recipe.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
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

/// The first lines in which two texts differ.
std::pair<std::string_view, std::string_view> difference(std::string_view a, std::string_view b) {
  // Takes the first line off a text; an empty line off an empty text.
  const auto next = [](std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
  };
  while (!a.empty() || !b.empty()) {
    const std::string_view line_a = next(a);
    const std::string_view line_b = next(b);
    if (line_a != line_b) return {line_a, line_b};
  }
  return {};
}

}  // namespace

void expect_same_settings(comm::Communicator& comm, Lines lines) {
  lines.insert(lines.begin(), fmt::format("version = {}", proof::version()));

  // Compare with rank 0, and tell every rank who differs.
  const std::string mine = text_of(lines);
  const std::string first = comm::text_of_rank(comm, 0, mine);
  std::int64_t same = mine == first ? 1 : 0;
  std::vector<std::int64_t> all(comm.world());
  comm::all_gather(comm, comm::array(std::span(&same, 1)), comm::array(std::span(all)));
  const auto other = std::ranges::find(all, 0);
  if (other == all.end()) return;

  // The first rank that differs sends its text, so that all ranks throw the same error.
  const auto rank = static_cast<int>(other - all.begin());
  const std::string its = comm::text_of_rank(comm, rank, mine);
  const auto [first_line, its_line] = difference(first, its);
  comm::meet(comm);
  fail<InvalidArgument>("train: rank 0 has {}, rank {} has {}; one recipe is required", first_line,
                        rank, its_line);
}

void expect_same_parameters(comm::Communicator& comm, const proof::Digest& mine) {
  std::vector<proof::Digest> all(comm.world());
  comm::all_gather(comm, std::as_bytes(std::span(&mine, 1)),
                   std::as_writable_bytes(std::span(all)));
  const auto other = std::ranges::find_if(all, [&](const auto& one) { return one != all[0]; });
  if (other == all.end()) return;
  comm::meet(comm);
  fail<InvalidArgument>(
      "train: the parameters of rank {} differ from those of rank 0 before the first step; equal "
      "ones are required: draw them from the same seed",
      other - all.begin());
}

void expect_same_data(comm::Communicator& comm, std::uint64_t mine, std::string_view what) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.world()));
  comm::all_gather(comm, std::as_bytes(std::span(&mine, 1)),
                   std::as_writable_bytes(std::span(all)));
  const auto other = std::ranges::find_if(all, [&](std::uint64_t one) { return one != all[0]; });
  if (other == all.end()) return;
  comm::meet(comm);
  fail<InvalidArgument>(
      "train: rank {} read other {} than rank 0; the same data on all ranks are required",
      other - all.begin(), what);
}

}  // namespace armillary::train
