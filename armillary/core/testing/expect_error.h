// expect_error.h: for tests: the text of the error that a refused call throws.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "armillary/core/error.h"

namespace armillary {

/// Returns the text of the InvalidArgument that `call` throws, or "no error".
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

/// Expects `call` to throw an InvalidArgument with exactly this text.
inline void expect_error(const std::string& text, const std::function<void()>& call) {
  EXPECT_EQ(error_of(call), text);
}

}  // namespace armillary
