// stored_file.h: files of the repository beside what the program prints.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

namespace armillary::golden {

inline std::string stored_file(const std::string& name) {
  std::ifstream file(ARMILLARY_SOURCE_DIR "/" + name, std::ios::binary);
  EXPECT_TRUE(file) << "no " << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Expects the file to be `printed`; the failure has the first line that differs, and `renew`.
inline void expect_stored(const std::string& name, const std::string& printed,
                          const std::string& renew) {
  const std::string stored = stored_file(name);
  if (stored == printed) return;
  const auto at = std::mismatch(stored.begin(), stored.end(), printed.begin(), printed.end()).first;
  ADD_FAILURE() << name << ":" << 1 + std::count(stored.begin(), at, '\n')
                << " is not what the program prints; renew it with `" << renew
                << "`, then read the difference";
}

}  // namespace armillary::golden
