#include "armillary/predict/cost/overlap.h"

#include <algorithm>

#include "armillary/core/error.h"

namespace armillary::cost {
namespace {

/// Walks the rows of a step (plan/step/step_program.h).
class Rows {
 public:
  Rows(std::span<const UnitTime> units, int zero) : units_(units), zero_(zero) {}

  Overlapped step(int microbatches) {
    const int units = static_cast<int>(units_.size());
    step_.end = gather(0);
    for (int m = 0; m < microbatches; ++m) {
      // The last unit runs twice in a row, as the first does from one microbatch to the next.
      for (int u = 0; u < units; ++u) {
        run(units_[u].forward, units_[u].forward_link, u + 1 < units ? gather(u + 1) : 0);
      }
      for (int u = units; u-- > 0;) {
        run(units_[u].backward, units_[u].backward_link, u > 0 ? gather(u - 1) : 0);
        if (zero_ >= 2 || m + 1 == microbatches) sum(units_[u]);
      }
    }
    step_.end += waiting_;
    update();
    return step_;
  }

 private:
  /// Seconds of a collective, which are noted.
  double collective(double seconds) {
    step_.collectives += seconds;
    return seconds;
  }
  double gather(int unit) { return zero_ == 3 ? collective(units_[unit].gather) : 0; }
  void sum(const UnitTime& unit) {
    waiting_ += collective(unit.sum + (zero_ == 0 ? unit.gather : 0));
  }

  /// A row: a run, of which `link` seconds fill the link, beside a gather and the sums that wait.
  void run(double alone, double link, double gathered) {
    if (zero_ >= 2) {
      step_.end += std::max(alone, link + gathered + waiting_);
      waiting_ = 0;
    } else {
      step_.end += alone;
      waiting_ = std::max(0.0, waiting_ - (alone - link));
    }
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
};

}  // namespace

Overlapped overlapped(std::span<const UnitTime> units, int microbatches, int zero) {
  ARMILLARY_CHECK(!units.empty() && microbatches >= 1);
  return Rows(units, zero).step(microbatches);
}

}  // namespace armillary::cost
