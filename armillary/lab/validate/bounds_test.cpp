// bounds_test.cpp: the bounds that predictions of published rows keep, as a table.
// docs/validation.md says which others do not hold.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "armillary/lab/validate/predict.h"
#include "armillary/lab/validate/table.h"

namespace armillary::validate {
namespace {

/// All rows of the program with their predictions.
struct Predicted {
  std::vector<PublishedRow> rows;
  std::vector<Prediction> predictions;
};
const Predicted& all_predictions() {
  static const Predicted all = [] {
    Predicted predicted;
    for (const RowFile& file : published_rows()) {
      predicted.rows.insert(predicted.rows.end(), file.rows.begin(), file.rows.end());
    }
    predicted.predictions = predict(predicted.rows);
    return predicted;
  }();
  return all;
}

/// The predicted rows whose id matches a pattern of the shell.
std::vector<std::size_t> matching(const std::string& pattern) {
  const Predicted& all = all_predictions();
  std::vector<std::size_t> items;
  for (std::size_t r = 0; r < all.rows.size(); ++r) {
    const bool matches = fnmatch(pattern.c_str(), all.rows[r].id.c_str(), 0) == 0;
    if (matches && all.predictions[r].error()) items.push_back(r);
  }
  return items;
}

struct Bound {
  std::string rows;  ///< Pattern of ids.
  std::size_t count = 0;
  double each = 1;  ///< Largest |error|.
  double mean = 1;  ///< Mean |error|.
};

TEST(Bounds, ErrorsOfPublishedRows) {
  const std::vector<Bound> bounds{
      {.rows = "h800_*", .count = 8, .each = 0.05},
      {.rows = "*_ulysses_cp*", .count = 12, .mean = 0.1},
      {.rows = "*_ring_p2p_cp*", .count = 12, .mean = 0.1},
      {.rows = "*_ring_allgather_cp*", .count = 12, .mean = 0.1},
      {.rows = "*_usp_cp*", .count = 12, .mean = 0.1},
      {.rows = "*_loongtrain_cp*", .count = 12, .mean = 0.1},
      {.rows = "fa2_a100_*", .count = 6, .each = 0.1, .mean = 0.05},
      {.rows = "a100_*", .count = 8, .mean = 0.05},
      {.rows = "readme_128k_h8_kv8_d128_*", .count = 12, .mean = 0.05},
      {.rows = "burst_*", .count = 8, .mean = 0.05},
      {.rows = "tokenring_total", .count = 1, .each = 0.1},
      {.rows = "ring_total", .count = 1, .each = 0.1},
      {.rows = "table3_*", .count = 16, .each = 0.1},
      {.rows = "table6_64k_b1_tp1_*", .count = 4, .each = 0.05},
      {.rows = "table6_64k_b1_tp4_*", .count = 2, .each = 0.05},
      {.rows = "table6_64k_b1_tp8_*", .count = 1, .each = 0.05},
      {.rows = "llama405b_prefill_1m_*", .count = 1, .each = 0.1},
      {.rows = "llama405b_prefill_*", .count = 10, .each = 0.25, .mean = 0.1},
      {.rows = "llama405b_decode_*_cp1", .count = 3, .each = 0.2},
      // Their ring pads one query to two.
      {.rows = "llama405b_decode_*_cp2", .count = 3, .each = 0.35},
  };
  const Predicted& all = all_predictions();
  for (const Bound& bound : bounds) {
    const std::vector<std::size_t> rows = matching(bound.rows);
    EXPECT_EQ(rows.size(), bound.count) << bound.rows;
    Errors errors;
    for (const std::size_t r : rows) {
      const double error = *all.predictions[r].error();
      errors.add(error);
      EXPECT_LE(std::abs(error), bound.each) << all.rows[r].id;
    }
    EXPECT_LE(errors.mean, bound.mean) << bound.rows;
  }
}

// Rows that are published as equally fast have no order.
TEST(Bounds, OrdersOfPublishedRows) {
  const std::vector<std::pair<std::string, std::size_t>> groups{
      {"table6_64k_b1_tp1_*", 4},   {"table6_64k_b1_tp4_*", 2}, {"table4_8k_*_basic-ring", 4},
      {"table4_8k_*_lb-ring", 4},   {"table4_32k_*", 8},        {"table4_128k_*_basic-ring", 4},
      {"table4_128k_*_lb-ring", 4}, {"h800_fwd_[!b]*", 4},      {"h800_fwd_bwd_*", 4},
  };
  const Predicted& all = all_predictions();
  for (const auto& [pattern, count] : groups) {
    const std::vector<std::size_t> rows = matching(pattern);
    EXPECT_EQ(rows.size(), count) << pattern;
    for (const std::size_t a : rows) {
      for (const std::size_t b : rows) {
        const Prediction& fast = all.predictions[a];
        const Prediction& slow = all.predictions[b];
        if (*fast.published >= *slow.published) continue;
        EXPECT_LE(*fast.predicted, *slow.predicted)
            << all.rows[a].id << " is published as faster than " << all.rows[b].id;
      }
    }
  }
}

TEST(Bounds, NoRowOfTheProgramIsRefused) {
  for (const Prediction& prediction : all_predictions().predictions) {
    EXPECT_EQ(prediction.refused, "");
  }
}

}  // namespace
}  // namespace armillary::validate
