// verdict.cpp: the gravest finding wins, and its text is cut to a fixed size, since verdicts travel
// as bytes.
#include "armillary/proof/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "armillary/comm/together.h"
#include "armillary/core/error.h"

namespace armillary::proof {

void Verdict::raise(Finding worse, std::string_view why) {
  if (worse <= finding) return;
  // A text that does not fit keeps its first kBegin characters and as much of its end as fits.
  constexpr std::size_t kBegin = 120;
  constexpr std::string_view kGap = " .. ";
  std::string fits(why);
  if (fits.size() >= sizeof(text)) {
    const std::size_t end = sizeof(text) - 1 - kBegin - kGap.size();
    fits = fmt::format("{}{}{}", why.substr(0, kBegin), kGap, why.substr(why.size() - end));
  }
  *this = {.finding = worse};  // Clears the text, so it ends with a zero.
  std::copy(fits.begin(), fits.end(), text);
}

void throw_verdict(const Verdict& verdict) {
  if (verdict.finding == Finding::RefusedPlan) fail<PlanError>("{}", verdict.text);
  fail<InvalidArgument>("{}", verdict.text);
}

void throw_together(comm::Communicator& comm, const Verdict& verdict) {
  if (verdict.finding == Finding::Fine) return;
  comm::meet(comm);
  throw_verdict(verdict);
}

}  // namespace armillary::proof
