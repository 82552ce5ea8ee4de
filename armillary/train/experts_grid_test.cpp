// experts_grid_test.cpp: models with experts on meshes of dp x cp x tp and of ep within them:
// losses, norms and every gradient against one rank in fp64, to 1e-12.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/testing/mesh_grid.h"
#include "armillary/train/testing/scratch_folder.h"

namespace armillary::train {
namespace {

/// Eight experts of which a token has two, one that all have, and both kinds of balance.
Recipe experts_recipe() {
  Recipe recipe = in_fp64(grid_recipe({"moe", 4, false}, 4, 4, 8));
  recipe.model.num_experts = 8;
  recipe.model.top_k = 2;
  recipe.model.num_shared_experts = 1;
  recipe.model.moe_inter_dim = 6;
  recipe.model.router_aux_loss_coef = 0.05;
  recipe.model.load_balance_coeff = 0.001;
  recipe.training.steps = 3;
  return recipe;
}

void expect_equal(const std::vector<TracedStep>& run, const std::vector<TracedStep>& one,
                  const std::string& what) {
  const GridError error = error_of(run, one, 1e-4);
  EXPECT_LE(error.loss, 1e-12) << what;
  EXPECT_LE(error.gradient, 1e-12) << what << ": " << error.where;
}

void expect_bits(const std::vector<TracedStep>& a, const std::vector<TracedStep>& b) {
  const GridError error = error_of(a, b, 1e-4);
  EXPECT_EQ(error.loss, 0);
  EXPECT_EQ(error.gradient, 0) << error.where;
}

/// E1, E2, E4, N3: every kind of axis within ep, whole or cut, and stages in turn.
TEST(ExpertsGrid, EveryViewEqualsOneRank) {
  const Recipe recipe = experts_recipe();
  const std::vector<TracedStep> one = trace_of(on_cell(recipe, {}));
  const std::vector<GridCell> cells{{{.cp = 2}, 0, "none"},
                                    {{.tp = 2}, 3, "full"},
                                    {{.cp = 2}, 1, "none", {.ep = 2}},
                                    {{.tp = 2}, 2, "none", {.ep = 2}},
                                    {{.dp = 2}, 3, "attention_output", {.ep = 2}},
                                    {{.tp = 4}, 0, "none", {.ep = 2}},
                                    {{.cp = 2, .tp = 2}, 0, "full", {.ep = 4}},
                                    {{.cp = 4}, 0, "none", {.ep = 2}},
                                    {{.dp = 2, .cp = 2, .tp = 2}, 0, "none", {.ep = 4}},
                                    {{.dp = 2, .cp = 2, .tp = 2}, 1, "none", {.ep = 8}},
                                    {{.dp = 2, .cp = 2, .tp = 2}, 2, "full", {.ep = 2}},
                                    {{.dp = 2, .cp = 2, .tp = 2}, 3, "none", {.ep = 4}},
                                    {{.cp = 2, .tp = 2}, 3, "none"},
                                    {{.cp = 4, .tp = 2}, 2, "none", {.ep = 2}},
                                    {{.cp = 4, .tp = 2}, 3, "none", {.ep = 8}},
                                    {{.cp = 2, .tp = 4}, 0, "full", {.ep = 8}},
                                    {{.dp = 8}, 3, "none", {.ep = 4}}};
  for (const GridCell& cell : cells) {
    expect_equal(trace_of(on_cell(recipe, cell)), one, to_string(cell));
  }
}

/// E6: sums have one order.
TEST(ExpertsGrid, TwoRunsHaveTheSameBits) {
  const Recipe recipe = on_cell(experts_recipe(), {{.cp = 2, .tp = 2}, 2, "none", {.ep = 4}});
  expect_bits(trace_of(recipe), trace_of(recipe));
}

/// The optimizer's state of experts on the host.
TEST(ExpertsGrid, StateOnTheHostHasTheSameBits) {
  for (const int zero : {0, 1, 3}) {
    Recipe recipe = on_cell(experts_recipe(), {{.dp = 2, .cp = 2}, zero, "none", {.ep = 2}});
    const std::vector<TracedStep> device = trace_of(recipe);
    recipe.optimizer.state_device = "host";
    expect_bits(trace_of(recipe), device);
  }
}

/// Heads of another size than dim / heads, norms of heads and biases, as in Qwen3-MoE.
TEST(ExpertsGrid, RelativesEqualOneRank) {
  Recipe recipe = experts_recipe();
  recipe.model.head_dim = 6;
  recipe.model.qk_norm = recipe.model.qkv_bias = true;
  expect_equal(trace_of(on_cell(recipe, {{.cp = 2, .tp = 2}, 3, "full", {.ep = 4}})),
               trace_of(on_cell(recipe, {})), "head_dim 6");
}

TEST(ExpertsGrid, CopiesShareTheExpertsOfTheirRanks) {
  const Recipe recipe = experts_recipe();
  const std::vector<TracedStep> one = trace_of(on_cell(recipe, {}));
  for (const int zero : {0, 1, 3}) {
    const GridCell cell{{.dp = 2, .cp = 2}, zero, "none", {.copies = 2, .ep = 2}};
    expect_equal(trace_of(on_cell(recipe, cell)), one, to_string(cell));
  }
}

/// E2: the balance of sequences does not depend on the passes of a step; that of a batch is of one
/// pass, whatever the mesh.
TEST(ExpertsGrid, TheBalanceLossIsThatOfItsGroup) {
  Recipe recipe = experts_recipe();
  const std::vector<TracedStep> passes_of_four =
      trace_of(on_cell(recipe, {{}, 0, "none", {.local_batch_size = 4}}));
  expect_equal(trace_of(on_cell(recipe, {})), passes_of_four, "passes of one sequence");
  recipe.model.balance_over = "batch";
  const std::vector<TracedStep> batch =
      trace_of(on_cell(recipe, {{}, 0, "none", {.local_batch_size = 8}}));
  const GridCell cell{{.dp = 4, .tp = 2}, 1, "none", {.local_batch_size = 2, .ep = 2}};
  expect_equal(trace_of(on_cell(recipe, cell)), batch, "batch");
}

/// Softmax without norm, Qwen3's norm, DeepSeek's sigmoid.
TEST(ExpertsGrid, EveryRouterEqualsOneRank) {
  for (const std::string score : {"softmax", "sigmoid"}) {
    for (const bool norm : {false, true}) {
      Recipe recipe = experts_recipe();
      recipe.model.score_func = score;
      recipe.model.route_norm = norm;
      recipe.model.route_scale = 1.5;
      recipe.model.top_k = 3;
      expect_equal(trace_of(on_cell(recipe, {{.cp = 2, .tp = 2}, 2, "none", {.ep = 4}})),
                   trace_of(on_cell(recipe, {})), fmt::format("{}, norm {}", score, norm));
    }
  }
}

/// C2: experts, their moments and the bias go from one view to another.
TEST(ExpertsGrid, ACheckpointGoesOnOnAnotherView) {
  Recipe recipe = experts_recipe();
  const TracedStep one = trace_of(on_cell(recipe, {})).back();
  const std::vector<GridCell> cells{{{.cp = 2, .tp = 2}, 3, "none", {.ep = 4}},
                                    {{.dp = 2, .cp = 2}, 0, "none", {.ep = 2}},
                                    {{.tp = 2}, 1, "none"}};
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const ScratchFolder folder;
    recipe.job.dump_folder = folder.path("run");
    Recipe first = on_cell(recipe, cells[i]);
    --first.training.steps;
    train(first, GridSequences(), {});
    const GridCell& next = cells[(i + 1) % cells.size()];
    StepMetrics last;
    train(on_cell(recipe, next), GridSequences(),
          {.on_step = [&](const StepMetrics& metrics) { last = metrics; }, .resume = true});
    const std::string where = to_string(cells[i]) + " -> " + to_string(next);
    EXPECT_NEAR(last.loss, one.loss, 1e-12 * one.loss) << where;
    EXPECT_NEAR(last.grad_norm, one.grad_norm, 1e-12 * one.grad_norm) << where;
  }
}

TEST(ExpertsGrid, ViewsThatTheMeshHasNotAreRefused) {
  const auto refused = [](const GridCell& cell) {
    return [cell] { trace_of(on_cell(experts_recipe(), cell)); };
  };
  using testing::HasSubstr;
  using testing::ThrowsMessage;
  EXPECT_THAT(refused({{.dp = 4}, 1, "none", {.ep = 3}}),
              ThrowsMessage<InvalidArgument>(HasSubstr("ep 3 in tp 1 x cp 1 x dp 4; ")));
  Recipe dense = grid_recipe({}, 4, 4, 8);
  dense.parallelism.expert_parallel_degree = 2;
  dense.parallelism.context_parallel_degree = 2;
  EXPECT_THAT([&] { trace_of(dense); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a model that has no experts")));
}

}  // namespace
}  // namespace armillary::train
