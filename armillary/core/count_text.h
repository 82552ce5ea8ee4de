// count_text.h: numbers of things in prose: `1 rank`, `2 ranks`.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

namespace armillary {

/// "" for 1, else "s": `rank` or `ranks`, `wait` or `waits` of many.
constexpr const char* plural_s(std::integral auto count) {
  return count == 1 ? "" : "s";
}

/// `1 rank`, `0 ranks`, `2 ranks`; `many` where the plural is not made with an s: `2 processes`.
inline std::string count_of(std::integral auto count, std::string_view one,
                            std::string_view many = {}) {
  if (count == 1 || many.empty()) return fmt::format("{} {}{}", count, one, plural_s(count));
  return fmt::format("{} {}", count, many);
}

}  // namespace armillary
