// wait_time.h: the time that a rank waits, as a sum.
#pragma once

#include <chrono>

namespace armillary::train {

/// Adds the seconds that it lives to a sum.
class WaitTime {
 public:
  explicit WaitTime(double& sum_s) : sum_s_(sum_s) {}
  WaitTime(const WaitTime&) = delete;
  WaitTime& operator=(const WaitTime&) = delete;
  ~WaitTime() {
    sum_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double& sum_s_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace armillary::train
