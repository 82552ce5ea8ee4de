// report.h: collects diagnostics up to a limit. Internal to verify.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "armillary/plan/verify.h"

namespace armillary::plan::verifier {

class Report {
 public:
  explicit Report(int limit) : limit_(limit) {}

  template <class... Args>
  void add(Rank rank, int op, std::string rule, fmt::format_string<Args...> format,
           Args&&... args) {
    if (full()) return;
    diagnostics_.push_back(
        {rank, op, std::move(rule), fmt::format(format, std::forward<Args>(args)...)});
  }
  /// What was found elsewhere, after all that was found so far.
  void add(const Report& found) {
    for (const Diagnostic& diagnostic : found.diagnostics_) {
      if (!full()) diagnostics_.push_back(diagnostic);
    }
  }
  int limit() const { return limit_; }
  bool full() const { return static_cast<int>(diagnostics_.size()) >= limit_; }
  bool empty() const { return diagnostics_.empty(); }
  std::vector<Diagnostic> take() { return std::move(diagnostics_); }

 private:
  int limit_;
  std::vector<Diagnostic> diagnostics_;
};

/// `k{3} heads 0-8` for messages.
std::string describe(const RankProgram& program, const View& view);

}  // namespace armillary::plan::verifier
