// The lanes of a step in closed form: what a lane carries is hidden as far as compute lasts beside
// it. step_timeline.cpp has the same by simulation.
#include "armillary/predict/cost/overlap.h"

#include <algorithm>
#include <utility>

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
      for (int u = 0; u < units; ++u) forward(u, m == 0);
      for (int u = units; u-- > 0;) {
        backward(u);
        if (zero_ >= 2 || m + 1 == microbatches) sum(units_[u]);
      }
    }
    step_.end += waiting_;
    update();
    return step_;
  }

 private:
  bool is_last(int unit) const { return unit + 1 == static_cast<int>(units_.size()); }

  /// The sum that waits may last until the last unit has run. The unit after the first one is still
  /// there from the microbatch before.
  void forward(int unit, bool of_first_microbatch) {
    const UnitTime& of = units_[unit];
    step_.end += of.forward;
    free_ += of.forward - of.forward_link;
    const bool gathers = zero_ == 3 && !is_last(unit) && (of_first_microbatch || unit > 0);
    if (gathers) {
      gather(unit + 1);
    } else {
      drain();
    }
    if (zero_ >= 2 && is_last(unit)) step_.end += std::exchange(waiting_, 0);
  }
  /// The row of stages 2 and 3 ends with the sum beside it. The unit before the last one is still
  /// there.
  void backward(int unit) {
    const UnitTime& of = units_[unit];
    const double sums = zero_ >= 2 ? std::exchange(waiting_, 0) : 0;
    const double row = std::max(of.backward, of.backward_link + sums);
    step_.end += row;
    free_ += row - of.backward_link - sums;
    if (zero_ < 2) drain();
    if (unit > 0 && !is_last(unit)) gather(unit - 1);
  }
  /// Stage 3: a gather beside the rows since the last one. A sum that waits has half of the link.
  void gather(int unit) {
    if (zero_ < 3) return;
    const double alone = collective(units_[unit].gather);
    const double shared = std::max(free_, alone + std::min(alone, waiting_));
    step_.end += shared - free_;
    waiting_ -= std::min(waiting_, shared - alone);
    free_ = 0;
  }
  /// Sums that wait go beside the last row.
  void drain() {
    waiting_ -= std::min(waiting_, free_);
    free_ = 0;
  }
  void sum(const UnitTime& unit) {
    step_.end += collective(unit.along_tp);
    waiting_ += collective((zero_ == 0 ? 2 : 1) * unit.sum);
    free_ = 0;
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
  double free_ = 0;     ///< Seconds in which the link is free since the last gather or sum.
};

}  // namespace

Overlapped overlapped(std::span<const UnitTime> units, int microbatches, int zero) {
  ARMILLARY_CHECK(!units.empty() && microbatches >= 1);
  return StepRows(units, zero).step(microbatches);
}

}  // namespace armillary::cost
