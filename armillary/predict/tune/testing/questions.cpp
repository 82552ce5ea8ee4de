#include "armillary/predict/tune/testing/questions.h"

#include <utility>

#include "armillary/predict/cost/known_models.h"

namespace armillary::tune::testing {

Question question(const std::string& cluster, int world, const std::string& mask,
                  std::int64_t seq) {
  Question question{.problem = {.world = world,
                                .heads = 8,
                                .kv_heads = 8,
                                .head_dim = 128,
                                .value_dim = 128,
                                .dtype = plan::Dtype::Bf16,
                                .mask = plan::parse_mask(mask, {seq, seq})},
                    .cluster = sim::load_cluster(cluster)};
  question.with_length = [problem = question.problem, mask](std::int64_t length) {
    plan::Problem longer = problem;
    longer.mask = plan::parse_mask(mask, {length, length});
    return longer;
  };
  return question;
}

AdviceQuestion advice_question(const std::string& model, const std::string& cluster,
                               std::int64_t seq, std::int64_t batch) {
  return {.model = model,
          .step = {.model = cost::parse_model(model), .seq = seq, .batch = batch},
          .cluster = sim::load_cluster(cluster),
          .mask = [](std::int64_t n) {
            return plan::causal_mask({n, n}, plan::Align::Start);
          }};
}

std::vector<Question> grid_of_200() {
  // Two nodes of four on Ethernet, PCIe with two sockets, PCIe, NVLink, and single devices.
  const std::vector<std::pair<std::string, int>> clusters{
      {"c4:nodes=2", 8}, {"c7", 8}, {"c8", 4}, {"c6", 6}, {"c10:nodes=5", 5}};
  const std::vector<std::pair<int, int>> heads{{8, 8}, {8, 2}, {16, 1}, {6, 3}};
  std::vector<Question> questions;
  for (const auto& [cluster, world] : clusters) {
    for (const auto& [q_heads, kv_heads] : heads) {
      for (const std::int64_t seq : {4096, 32768}) {
        const std::string half = std::to_string(seq / 2);
        for (const std::string& mask :
             {std::string("full"), std::string("causal"), std::string("window:left=700,right=0"),
              "prefix:" + half, "documents:" + half + ",1000," + std::to_string(seq / 2 - 1000)}) {
          questions.push_back(question(cluster, world, mask, seq));
          questions.back().problem.heads = q_heads;
          questions.back().problem.kv_heads = kv_heads;
        }
      }
    }
  }
  return questions;
}

}  // namespace armillary::tune::testing
