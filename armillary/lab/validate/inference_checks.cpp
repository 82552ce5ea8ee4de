// inference_checks.cpp: statements about inference. They are those of million-token prefill
// (arXiv:2411.01783), from the rows of that paper.
#include <algorithm>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/lab/validate/check_builders.h"
#include "armillary/lab/validate/predict.h"

namespace armillary::validate {
namespace {

/// Predicted seconds of a row of the program.
double seconds_of(const std::string& id) {
  for (const RowFile& file : published_rows()) {
    const auto row = std::ranges::find(file.rows, id, &PublishedRow::id);
    if (row == file.rows.end()) continue;
    const Prediction prediction = predict(*row);
    ARMILLARY_CHECK(prediction.predicted.has_value());
    return *prediction.predicted;
  }
  ARMILLARY_CHECK(false);
  return 0;
}

}  // namespace

std::vector<Check> million_tokens() {
  const double million_s = seconds_of("llama405b_prefill_1m_cp16");
  // Appendix A: 2 W T for products, half of 4 T^2 D for each of 126 layers.
  const double flops = 2 * 405e9 * 1e6 + 0.5 * 4 * 1e12 * 16384 * 126;
  const double rate = flops / million_s / 128;
  const double one_node = seconds_of("llama405b_prefill_128k_cp1");
  const std::string paper = "2411.01783, Llama 3 405B: ";
  return {near(paper + "1M tokens on 128 H100, time to first token", million_s, 77, 0.1, "s"),
          near(paper + "its FLOP/s over those of the kernel alone, parallel efficiency",
               100 * rate / 540e12, 93, 0.1, "%"),
          near(paper + "128K tokens, one node over eight",
               one_node / seconds_of("llama405b_prefill_128k_cp8"), 42.01 / 5.85, 0.1, "x"),
          near(paper + "128K tokens, a token behind them over one behind 8K, one node",
               seconds_of("llama405b_decode_128k_cp1") / seconds_of("llama405b_decode_8k_cp1"),
               46.26 / 44.51, 0.1, "x")};
}

}  // namespace armillary::validate
