#include "armillary/plan/parallel_for_ranks.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace armillary::plan {

// Threads take ranks from a common counter, so uneven work is shared out evenly. Exceptions are
// kept by rank and the first of them is thrown at the end, so that the result does not depend on
// timing.
void parallel_for_ranks(int world, const std::function<void(Rank rank)>& work) {
  // Starting a thread takes about as long as the work on one small program.
  constexpr int kRanksPerThread = 8;
  const int threads =
      std::min(static_cast<int>(std::thread::hardware_concurrency()), world / kRanksPerThread);
  std::atomic<Rank> next = 0;
  std::vector<std::exception_ptr> failures(world);
  const auto work_on = [&] {
    for (Rank rank = next++; rank < world; rank = next++) {
      try {
        work(rank);
      } catch (...) {
        failures[rank] = std::current_exception();
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

}  // namespace armillary::plan
