#include "armillary/plan/each_rank.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace armillary::plan {

void for_each_rank(int world, const std::function<void(Rank rank)>& work) {
  constexpr int kRanksPerThread = 8;  // A thread is started in the time that a small program takes.
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
      // Where no more threads can be had, those that there are do all of it.
    }
    work_on();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace armillary::plan
