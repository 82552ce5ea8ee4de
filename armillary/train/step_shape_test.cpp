// step_shape_test.cpp: the steps of recipes are proved, with the numbers of their models and the
// shards of their stores.
#include "armillary/train/step_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/plan/step/check_step.h"
#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/storage.h"
#include "armillary/train/recipe_parts.h"
#include "armillary/train/replica_groups.h"
#include "armillary/train/store.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

plan::step::StepShape shape_of(const Recipe& recipe) {
  return step_shape_of(*make_model(recipe), recipe.parallelism, recipe.training);
}

TEST(StepShape, HasTheParametersOfTheModel) {
  Recipe recipe = small_recipe();
  recipe.model.enable_weight_tying = true;
  recipe.training.global_batch_size = 6;
  recipe.parallelism.data_parallel_shard_degree = 2;
  const plan::step::StepShape shape = shape_of(recipe);
  ASSERT_EQ(shape.units.size(), 4U);
  EXPECT_EQ(shape.microbatches, 3);
  recipe.training.local_batch_size = 3;
  EXPECT_EQ(shape_of(recipe).microbatches, 1);
  EXPECT_EQ(shape.zero, 1);
  EXPECT_THAT(shape.units.back().uses, ElementsAre(0));
  std::int64_t values = 0;
  for (const auto& unit : shape.units) values += unit.split;
  EXPECT_EQ(values, make_model(recipe)->cost().parameters);
}

TEST(StepShape, StepsOfRecipesAreProved) {
  for (const int tp : {1, 2}) {
    for (std::int64_t zero = 0; zero <= 3; ++zero) {
      Recipe recipe = small_recipe();
      recipe.training.global_batch_size = 4;
      recipe.parallelism.data_parallel_shard_degree = 2;
      recipe.parallelism.context_parallel_degree = 2;
      recipe.parallelism.tensor_parallel_degree = tp;
      recipe.parallelism.zero = zero;
      const plan::step::StepShape shape = shape_of(recipe);
      const plan::step::StepProgram step = plan::step::build_step(shape);
      EXPECT_TRUE(plan::step::check_step(step.world(), shape).empty()) << tp << ' ' << zero;
    }
  }
}

/// Copies of shards, and KV heads that neighbours along tp share.
TEST(StepShape, HasCopiesAndSharers) {
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    Recipe recipe = small_recipe();
    recipe.training.global_batch_size = 4;
    recipe.parallelism.data_parallel_replicate_degree = 2;
    recipe.parallelism.data_parallel_shard_degree = 2;
    recipe.parallelism.tensor_parallel_degree = 4;
    recipe.parallelism.zero = zero;
    recipe.parallelism.reshard_after_forward = zero < 3;
    const plan::step::StepShape shape = shape_of(recipe);
    EXPECT_EQ(shape.copies, zero == 0 ? 1 : 2);
    EXPECT_EQ(shape.sharers, 2);
    EXPECT_EQ(shape.reshard_after_forward, zero < 3);
    std::int64_t values = 0;
    for (const auto& unit : shape.units) values += unit.split + unit.summed + unit.shared;
    EXPECT_EQ(values, make_model(recipe)->cost().parameters);
    const plan::step::StepProgram step = plan::step::build_step(shape);
    EXPECT_TRUE(plan::step::check_step(step.world(), shape).empty()) << zero;
  }
}

/// Biases of Q, K and V are cut with their matrices, and shared with their KV heads; norms of heads
/// are whole on each rank, which uses them for its own heads.
TEST(StepShape, HasBiasesOfQkvAndNormsOfHeads) {
  Recipe recipe = small_recipe();
  recipe.model.name = "llama";
  recipe.training.global_batch_size = 2;
  recipe.parallelism.data_parallel_shard_degree = 2;
  for (const int tp : {2, 4}) {
    recipe.parallelism.tensor_parallel_degree = tp;
    recipe.model.head_dim = 10;
    recipe.model.qkv_bias = recipe.model.qk_norm = false;
    const plan::step::UnitShape plain = shape_of(recipe).units[1];
    recipe.model.qkv_bias = recipe.model.qk_norm = true;
    const plan::step::StepShape shape = shape_of(recipe);
    const plan::step::UnitShape& layer = shape.units[1];
    EXPECT_EQ(layer.summed - plain.summed, 2 * 10) << tp;
    const std::int64_t q = 10 * recipe.model.n_heads;
    const std::int64_t kv = 20 * recipe.model.kv_heads();
    EXPECT_EQ(layer.split - plain.split, tp == 2 ? q + kv : q) << tp;
    EXPECT_EQ(layer.shared - plain.shared, tp == 2 ? 0 : kv) << tp;
    const plan::step::StepProgram step = plan::step::build_step(shape);
    EXPECT_TRUE(plan::step::check_step(step.world(), shape).empty()) << tp;
  }
}

/// Shards are those of stores, whole rows of all uses together.
TEST(StepShape, HasTheShardsOfStores) {
  for (const int tp : {1, 2, 4}) {
    Recipe recipe = small_recipe();
    recipe.parallelism.tensor_parallel_degree = tp;
    recipe.parallelism.data_parallel_shard_degree = 3;
    recipe.training.global_batch_size = 3;
    recipe.parallelism.zero = 3;
    for (const char* param : {"float32", "bfloat16"}) {
      recipe.training.mixed_precision_param = param;
      const plan::step::StepTables tables(shape_of(recipe));
      const std::unique_ptr<model::Model> model = make_model(recipe);
      comm::run_ranks(3 * tp, [&](comm::Communicator& comm) {
        const comm::Mesh mesh(comm, mesh_of(recipe.parallelism));
        const ReplicaGroups groups(mesh, recipe.parallelism);
        const Store store(*model, 1, groups.replicas(), dtypes_of(recipe.training));
        EXPECT_EQ(store.bytes_at_rest(), plan::step::resting_bytes(tables, comm.rank())) << tp;
      });
    }
  }
}

/// Experts have shards over other ranks than the rest.
TEST(StepShape, HasTheShardsOfStoresWithExperts) {
  Recipe recipe = small_recipe();
  recipe.model.name = "moe";
  recipe.model.num_experts = 6;
  recipe.model.moe_inter_dim = 10;
  recipe.model.load_balance_coeff = 0.01;
  recipe.parallelism.context_parallel_degree = 3;
  recipe.parallelism.tensor_parallel_degree = 2;
  for (const int ep : {1, 2, 6}) {
    recipe.parallelism.expert_parallel_degree = ep;
    for (int zero = 0; zero <= 3; ++zero) {
      recipe.parallelism.zero = zero;
      const plan::step::StepShape shape = shape_of(recipe);
      const plan::step::StepTables tables(shape);
      const plan::step::StepProgram step = plan::step::build_step(shape);
      EXPECT_TRUE(plan::step::check_step(step.world(), shape).empty()) << ep << " " << zero;
      std::int64_t values = 0;
      for (const auto& unit : shape.units) values += unit.split + unit.summed + unit.experts;
      EXPECT_EQ(values, make_model(recipe)->cost().parameters);
      const std::unique_ptr<model::Model> model = make_model(recipe);
      comm::run_ranks(6, [&](comm::Communicator& comm) {
        const comm::Mesh mesh(comm, mesh_of(recipe.parallelism));
        const ReplicaGroups groups(mesh, recipe.parallelism, /*has_experts=*/true);
        const Store store(*model, 1, groups.replicas(), dtypes_of(recipe.training));
        EXPECT_EQ(store.bytes_at_rest(), plan::step::resting_bytes(tables, comm.rank()))
            << ep << " " << zero;
      });
    }
  }
}

TEST(StepShape, MoreRanksThanExpertsAreRefused) {
  Recipe recipe = small_recipe();
  recipe.model.name = "moe";
  recipe.model.num_experts = 6;
  recipe.parallelism.expert_parallel_degree = 8;
  EXPECT_THAT(
      [&] { step_shape_of(*make_model(recipe), {.cp = 8}, recipe.parallelism, recipe.training); },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("step: ep 8 of 6 experts of layers.0.moe.experts.w1; at most one rank an "
                    "expert is required; nearest: ep 4")));
}

TEST(StepShape, CopiesThatDoNotDivideDpAreRefused) {
  Recipe recipe = small_recipe();
  recipe.parallelism.data_parallel_replicate_degree = 2;
  EXPECT_THAT(
      [&] { step_shape_of(*make_model(recipe), {.dp = 3}, recipe.parallelism, recipe.training); },
      ThrowsMessage<InvalidArgument>(HasSubstr("data_parallel_replicate_degree = 2 of 3 ranks")));
}

/// Key-value heads of two numbers, each shared by other ranks.
class TwoSharings : public model::Model {
 public:
  std::vector<std::string> units() const override { return {"unit"}; }
  std::vector<model::Parameter> parameters() const override {
    return {{.name = "two",
             .shape = {2},
             .placement = model::TpSplit::Columns,
             .units = {"unit"},
             .copied = true},
            {.name = "four",
             .shape = {4},
             .placement = model::TpSplit::Columns,
             .units = {"unit"},
             .copied = true}};
  }
  at::Tensor run(int, const model::Weights&, const at::Tensor& x,
                 const model::ModelInputs&) override {
    return x;
  }
  cost::ModelCost cost() const override { return {}; }
};

TEST(StepShape, TwoNumbersOfSharersAreRefused) {
  EXPECT_THAT([] { step_shape_of(TwoSharings(), {.tp = 8}, {}, {}); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("parameter four is shared by 2 of 8 ranks along tp, another by 4; one "
                            "number is required; nearest: tensor_parallel_degree = 2")));
}

}  // namespace
}  // namespace armillary::train
