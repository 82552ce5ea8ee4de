#include "armillary/predict/cost/overlap.h"

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::cost {
namespace {

/// Walks the rows of a step (plan/step/step_program.h).
class StepRows {
 public:
  StepRows(std::span<const UnitTime> units, int zero) : units_(units), zero_(zero) {}

  Overlapped step(int microbatches) {
    const int units = static_cast<int>(units_.size());
    gather(0);
    for (int m = 0; m < microbatches; ++m) {
      // The last unit runs twice in a row, as the first does from one microbatch to the next: what
      // follows is gathered beside both runs.
      for (int u = 0; u < units; ++u) {
        run(units_[u].forward, units_[u].forward_link);
        if (u + 1 < units) gather(u + 1);
      }
      for (int u = units; u-- > 0;) {
        run(units_[u].backward, units_[u].backward_link);
        if (u > 0) gather(u - 1);
        if (zero_ >= 2 || m + 1 == microbatches) sum(units_[u]);
      }
    }
    step_.end += waiting_;
    update();
    return step_;
  }

 private:
  /// A row: a run, of which `link` seconds fill the link, beside the sums that wait. Rows of stages
  /// 2 and 3 end with their sums.
  void run(double alone, double link) {
    const double sums = zero_ >= 2 ? waiting_ : std::min(waiting_, alone - link);
    const double row = std::max(alone, link + sums);
    waiting_ -= sums;
    step_.end += row;
    free_ += row - link - sums;
  }
  /// Stage 3: a gather beside the rows since the last one.
  void gather(int unit) {
    if (zero_ < 3) return;
    step_.end += std::max(0.0, collective(units_[unit].gather) - free_);
    free_ = 0;
  }
  void sum(const UnitTime& unit) {
    waiting_ += collective(unit.sum + (zero_ == 0 ? unit.gather : 0));
  }
  /// Seconds of a collective, which are noted.
  double collective(double seconds) {
    step_.collectives += seconds;
    return seconds;
  }

  /// Stages 1 and 2 gather the values of each unit beside the updates that follow.
  void update() {
    double gathered = step_.end;
    for (const UnitTime& unit : units_) {
      step_.end += unit.update;
      if (zero_ == 1 || zero_ == 2) {
        gathered = std::max(gathered, step_.end) + collective(unit.gather);
      }
    }
    step_.end = std::max(step_.end, gathered);
  }

  std::span<const UnitTime> units_;
  int zero_;
  Overlapped step_;
  double waiting_ = 0;  ///< Seconds of sums that are not done.
  double free_ = 0;     ///< Seconds in which the link was free since the last gather.
};

}  // namespace

Overlapped overlapped(std::span<const UnitTime> units, int microbatches, int zero) {
  ARMILLARY_CHECK(!units.empty() && microbatches >= 1);
  return StepRows(units, zero).step(microbatches);
}

}  // namespace armillary::cost
