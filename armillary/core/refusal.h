// refusal.h: what a call that must not work says. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "armillary/core/error.h"

namespace armillary {

/// The message of the InvalidArgument that `call` throws, or "no error".
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

inline void expect_refused(const std::string& message, const std::function<void()>& call) {
  EXPECT_EQ(error_of(call), message);
}

}  // namespace armillary
