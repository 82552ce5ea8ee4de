// messages.h: short ways to send and receive numbers, for the tests of the suite.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"

namespace armillary::comm {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The values of a message: first, first + 1, .., `count` in all.
inline std::vector<int> numbers(int count, int first) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

inline Request send(Communicator& comm, int peer, int lane, std::vector<int>& values) {
  const Strided part = whole(std::span(values));
  return comm.isend(peer, lane, {&part, 1});
}

inline Request receive(Communicator& comm, int peer, int lane, std::vector<int>& values) {
  const Strided part = whole(std::span(values));
  return comm.irecv(peer, lane, {&part, 1});
}

/// Text of the E that `call` throws; a test failure if it throws none.
template <class E, class Call>
std::string text_of(const Call& call) {
  try {
    call();
  } catch (const E& e) {
    return e.what();
  }
  ADD_FAILURE() << "no exception";
  return "";
}

}  // namespace armillary::comm
