// reason.h: exceptions as the reasons of aborts. Internal to comm.
#pragma once

#include <exception>
#include <string>

#include "armillary/core/user_text.h"

namespace armillary::comm {

/// Text of any exception, as the reason of an abort.
inline std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return error_text(e);
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace armillary::comm
