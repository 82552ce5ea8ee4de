// diagnostics.h: broken rules with their places, and a list of them with a limit.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/program/program.h"

namespace armillary::plan {

/// One broken rule, with its place in a plan.
struct Diagnostic {
  Rank rank = -1;  ///< -1: the plan as a whole.
  int op = -1;     ///< Index in the rank's ops; -1: no op, for example an output that is missing.
  std::string rule;
  std::string text;
  bool operator==(const Diagnostic&) const = default;
};

/// The diagnostics found so far, in order. Once there are `limit` of them, more are dropped. Not
/// thread-safe: checks of many ranks have one list each and append them in the order of the ranks.
class Diagnostics {
 public:
  explicit Diagnostics(int limit) : limit_(limit) {}

  /// Adds one diagnostic: `rule` as verify.h names it, then the message and its arguments. `rank`
  /// and `op` are -1 if the diagnostic has none.
  template <class... Args>
  void add(Rank rank, int op, std::string rule, fmt::format_string<Args...> format,
           Args&&... args) {
    if (full()) return;
    diagnostics_.push_back(
        {rank, op, std::move(rule), fmt::format(format, std::forward<Args>(args)...)});
  }
  /// Appends the diagnostics of another list.
  void add(const Diagnostics& diagnostics) {
    for (const Diagnostic& diagnostic : diagnostics.diagnostics_) {
      if (!full()) diagnostics_.push_back(diagnostic);
    }
  }
  int limit() const { return limit_; }
  /// True if no more diagnostics are kept, so that a check may stop early.
  bool full() const { return static_cast<int>(diagnostics_.size()) >= limit_; }
  bool empty() const { return diagnostics_.empty(); }
  /// Moves the list out; this object is spent.
  std::vector<Diagnostic> take() { return std::move(diagnostics_); }

 private:
  int limit_;
  std::vector<Diagnostic> diagnostics_;
};

/// Formats a view for messages: `k{3} heads 0-8`, `narrow partial dq{0} heads 0-2`. Any view may be
/// given; an unknown tile prints as `?`.
std::string describe(const RankProgram& program, const View& view);
/// The views of a message: `k{3} heads 0-8 with v{3} heads 0-8`.
std::string describe(const RankProgram& program, const Op& message);

}  // namespace armillary::plan
