#include "armillary/core/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace armillary {

// Threads take calls from a common counter, so uneven work is shared out evenly. Exceptions are
// kept by call and the first of them is thrown at the end, so that the result does not depend on
// timing.
void parallel_for(int count, const std::function<void(int i)>& work, int least_per_thread) {
  const int threads =
      std::min(static_cast<int>(std::thread::hardware_concurrency()), count / least_per_thread);
  std::atomic<int> next = 0;
  std::vector<std::exception_ptr> failures(count);
  const auto work_on = [&] {
    for (int i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int i = 1; i < threads; ++i) others.emplace_back(work_on);
    } catch (const std::system_error&) {
      // The system gives no more threads: those that were started do all of the work.
    }
    work_on();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace armillary
