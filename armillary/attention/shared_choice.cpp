// shared_choice.cpp: a choice travels as text, the form in which strategies are written and parsed
// anyway.
#include "armillary/attention/shared_choice.h"

#include <fmt/format.h>

#include <cstddef>

#include "armillary/comm/together.h"
#include "armillary/core/error.h"

namespace armillary::attention {
namespace {

/// A choice as it travels: three lines, of which only the last may be empty or hold more.
std::string to_text(const tune::AutomaticChoice& choice) {
  return fmt::format("{}\n{}\n{}", to_string(choice.strategy), choice.is_new ? "new" : "known",
                     choice.line);
}

tune::AutomaticChoice parse_choice(const std::string& text) {
  const std::size_t first = text.find('\n');
  const std::size_t second = text.find('\n', first + 1);
  ARMILLARY_CHECK(second != std::string::npos);
  return {.strategy = plan::parse_strategy(text.substr(0, first)),
          .line = text.substr(second + 1),
          .is_new = text.substr(first + 1, second - first - 1) == "new"};
}

}  // namespace

tune::AutomaticChoice choose_together(comm::Communicator& comm, const Choose& choose) {
  return parse_choice(comm::text_of_rank(comm, 0, [&] { return to_text(choose()); }));
}

tune::AutomaticChoice choose_together(comm::Communicator& comm, const std::string& text,
                                      const plan::Problem& problem) {
  tune::AutomaticChoice choice = choose_together(comm, [&] { return tune::choose(text, problem); });
  // Rank 0 has it from tune::choose() itself.
  if (comm.rank() != 0) tune::remember(text, problem, choice);
  return choice;
}

}  // namespace armillary::attention
