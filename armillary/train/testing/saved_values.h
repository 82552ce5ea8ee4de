// saved_values.h: the tensors of a checkpoint as numbers, for tests that compare runs by them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "armillary/train/checkpoint/checkpoint.h"

namespace armillary::train {

using SavedValues = std::map<std::string, std::vector<double>>;

/// The whole tensors of a checkpoint whose names begin with `kind`.
inline SavedValues saved_values(const std::string& folder, const std::string& kind = "") {
  const Checkpoint checkpoint(folder);
  SavedValues all;
  for (const io::TensorInfo& info : checkpoint.tensors()) {
    if (!info.name.starts_with(kind)) continue;
    const std::vector<std::byte> bytes = checkpoint.bytes(info);
    const auto read = [&](auto value) {
      for (std::size_t at = 0; at < bytes.size(); at += sizeof value) {
        std::memcpy(&value, bytes.data() + at, sizeof value);
        all[info.name].push_back(value);
      }
    };
    all[info.name].reserve(bytes.size() / sizeof(float));
    info.dtype == io::TensorDtype::F64 ? read(double{}) : read(float{});
  }
  return all;
}

/// Expects every element within `bound` times the largest of its tensor.
inline void expect_values_near(const SavedValues& result, const SavedValues& expected, double bound,
                               const std::string& where) {
  ASSERT_EQ(result.size(), expected.size()) << where;
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(result.contains(name)) << where << ": " << name;
    const std::vector<double>& others = result.at(name);
    ASSERT_EQ(others.size(), values.size()) << where << ": " << name;
    double error = 0;
    double largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      error = std::max(error, std::abs(others[i] - values[i]));
      largest = std::max(largest, std::abs(values[i]));
    }
    EXPECT_LE(error, bound * largest) << where << ": " << name;
  }
}

}  // namespace armillary::train
