// sanitized.h: is this a build whose code is ten times slower, for it looks after every access?
#pragma once

namespace armillary {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace armillary
