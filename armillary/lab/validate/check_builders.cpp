// check_builders.cpp: every statement is a value between two bounds. Yes and no are 1 and 0 between
// equal bounds, so a table has one rule for all.
#include "armillary/lab/validate/check_builders.h"

#include <fmt/format.h>

namespace armillary::validate {
namespace {

std::string number(double value, const std::string& unit) {
  return fmt::format("{:.4g}{}", value, unit.empty() ? "" : " " + unit);
}

}  // namespace

Check near(const std::string& statement, double value, double published, double tolerance,
           const std::string& unit) {
  return {.statement = statement,
          .value_text = number(value, unit),
          .published = fmt::format("{}, within {:g} %", number(published, unit), 100 * tolerance),
          .value = value,
          .least = published * (1 - tolerance),
          .most = published * (1 + tolerance)};
}

Check within(const std::string& statement, double value, double least, double most,
             const std::string& unit) {
  return {.statement = statement,
          .value_text = number(value, unit),
          .published = fmt::format("{:.4g} to {}", least, number(most, unit)),
          .value = value,
          .least = least,
          .most = most};
}

Check agrees(const std::string& statement, bool value, bool published) {
  const double bound = published ? 1 : 0;
  return {.statement = statement,
          .value_text = value ? "yes" : "no",
          .published = published ? "yes" : "no",
          .value = value ? 1.0 : 0.0,
          .least = bound,
          .most = bound};
}

Check outside(Check check, const Outside& known) {
  check.cause = known.cause;
  check.known = known.value;
  return check;
}

plan::Problem attention_of(int world, std::int64_t seq, int heads, int head_dim, bool causal) {
  return {.world = world,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .value_dim = head_dim,
          .dtype = plan::Dtype::Bf16,
          .mask = causal ? plan::causal_mask({seq, seq}, plan::Align::Start)
                         : plan::full_mask({seq, seq}),
          .transfer_dtype = plan::TransferDtype::Input};
}

}  // namespace armillary::validate
