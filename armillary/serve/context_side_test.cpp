// context_side_test.cpp: the side that travels, against published times of both.
#include "armillary/serve/context_side.h"

#include <gtest/gtest.h>

#include <vector>

namespace armillary::serve {
namespace {

/// Time to first token in ms with 128,000 tokens in all, on 4 ranks along cp.
struct PublishedTimes {
  std::int64_t new_tokens;
  double kv_ms;
  double q_ms;
};

// Table 4 of arXiv:2411.01783: Llama 3 405B, 16 query heads and a KV head on each rank along tp.
// Partial results are taken to travel in bf16, as Q, K and V do.
TEST(ContextSide, IsTheFasterOneOfAPublishedTable) {
  const std::vector<PublishedTimes> table{
      {1280, 1023.39, 898.71},     {3200, 1110.18, 1046.43},    {4160, 1298.92, 1280.1},
      {6400, 1305.56, 1302.01},    {12800, 2080.67, 2205.27},   {25600, 3353.02, 3617.02},
      {38400, 4629.23, 4922.52},   {51200, 5745.08, 6217.83},   {64000, 6845.21, 7367.99},
      {76800, 7890.35, 8468.66},   {89600, 8697.27, 9666.62},   {102400, 10105.78, 10652.39},
      {115200, 11136.4, 11571.62}, {128000, 11462.15, 12360.57}};
  for (const PublishedTimes& row : table) {
    const ContextSide side = cheaper_side({.new_tokens = row.new_tokens,
                                           .cached_tokens = 128'000 - row.new_tokens,
                                           .heads = 16,
                                           .kv_heads = 1,
                                           .head_dim = 128,
                                           .value_dim = 128,
                                           .element_bytes = 2,
                                           .accumulator_bytes = 2});
    EXPECT_EQ(side, row.q_ms < row.kv_ms ? ContextSide::Queries : ContextSide::KeysAndValues)
        << row.new_tokens;
  }
}

}  // namespace
}  // namespace armillary::serve
