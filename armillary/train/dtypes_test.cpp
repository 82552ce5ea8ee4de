// dtypes_test.cpp: the dtypes of [training]: what fits, runs in bf16 with gradients that travel in
// it, checkpoints of fp64, and bytes of the estimate against those of stores.
#include "armillary/train/dtypes.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/checkpoint/restore.h"
#include "armillary/train/estimate.h"
#include "armillary/train/export_model.h"
#include "armillary/train/one_device.h"
#include "armillary/train/store.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_training.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// The names of the three dtypes of a recipe.
struct DtypeNames {
  std::string_view dtype = "float32";
  std::string_view param = "float32";
  std::string_view reduce = "float32";
};

Recipe with_dtypes(const DtypeNames& names) {
  Recipe recipe = small_recipe();
  recipe.training.dtype = names.dtype;
  recipe.training.mixed_precision_param = names.param;
  recipe.training.mixed_precision_reduce = names.reduce;
  return recipe;
}

constexpr DtypeNames kAllFp64{"float64", "float64", "float32"};

TEST(Dtypes, ThoseThatDoNotFitAreRefused) {
  const auto refused = [](const DtypeNames& names, const std::string& text) {
    EXPECT_THAT([&] { validate(with_dtypes(names)); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused({"float64"},
          "training.mixed_precision_param = float32 with training.dtype = float64, where nothing "
          "is mixed; float64 is required");
  refused({"float64", "bfloat16"}, "training.mixed_precision_param = bfloat16 with");
  refused({"float64", "float64", "bfloat16"}, "training.mixed_precision_reduce = bfloat16 with");
  refused({"float32", "float64"},
          "training.mixed_precision_param = float64 with training.dtype = float32; float32 or "
          "bfloat16 is required; nearest: training.dtype = float64");
  refused({"float32", "float32", "bfloat16"}, "with dp 1 and cp 1, where no gradient travels");
  EXPECT_NO_THROW(validate(with_dtypes(kAllFp64)));
  const Dtypes dtypes = dtypes_of(with_dtypes(kAllFp64).training);
  EXPECT_EQ(dtypes.master, at::kDouble);
  EXPECT_EQ(dtypes.param, at::kDouble);
  EXPECT_EQ(dtypes.reduce, at::kDouble);
}

/// Loss of a sequence, and its gradients in the store.
double loss_on_one_device(const Recipe& recipe, const Sequence& sequence, Store& store) {
  const std::unique_ptr<model::Model> model = make_model(recipe);
  const at::Tensor positions_L = at::arange(recipe.training.seq_len);
  const plan::Mask mask = sequence_mask("documents", sequence.documents);
  const model::ModelInputs inputs{.batch = model::rows_of(sequence.fields, positions_L),
                                  .positions_L = positions_L,
                                  .attends = attend_on_one_device(visible_pairs(mask))};
  store.zero_gradients();
  const at::Tensor loss = model::run_units(
      *model, [&](int unit) { return store.use(unit); }, inputs);
  loss.backward();
  store.check_views();
  return loss.item<double>();
}

// Masters that bf16 holds: rounding them once or at each use is the same, bit for bit.
TEST(Dtypes, Bf16ParametersComputeWhatRoundedOnesDo) {
  for (const auto& [name, recompute] :
       {std::pair("gpt2", "none"), std::pair("llama", "full"), std::pair("llama", "none")}) {
    Recipe recipe = with_dtypes({"float32", "bfloat16"});
    recipe.model.name = name;
    recipe.model.qkv_bias = recipe.model.qk_norm = std::string_view(recompute) == "none";
    recipe.model.max_seq_len = recipe.training.seq_len;
    recipe.model.enable_weight_tying = std::string_view(recompute) == "full";
    recipe.activation_checkpoint.mode = recompute;
    Store narrow(*make_model(recipe), 3, {}, dtypes_of(recipe.training));
    Store wide(*make_model(recipe), 3);
    for (Store* const store : {&narrow, &wide}) {
      const at::NoGradGuard no_grad;
      for (const Piece& piece : store->pieces()) {
        piece.value.copy_(piece.value.to(at::kBFloat16));
      }
      store->gather_values();
    }
    const Sequence sequence = words(recipe.training.seq_len).at(0);
    EXPECT_EQ(loss_on_one_device(recipe, sequence, narrow),
              loss_on_one_device(recipe, sequence, wide))
        << name;
    for (std::size_t i = 0; i < wide.pieces().size(); ++i) {
      EXPECT_TRUE(at::equal(narrow.pieces()[i].gradient, wide.pieces()[i].gradient))
          << name << ' ' << wide.pieces()[i].name;
    }
  }
}

// Two sequences on two ranks along dp: each stage has one sum of each gradient.
TEST(Dtypes, StagesInBf16HaveTheSameBits) {
  for (const char* const reduce : {"float32", "bfloat16"}) {
    std::vector<StepMetrics> zero0;
    for (int zero = 0; zero <= 3; ++zero) {
      Recipe recipe = with_dtypes({"float32", "bfloat16", reduce});
      recipe.training.steps = 3;
      recipe.training.check_replicas = 1;
      recipe.parallelism.data_parallel_shard_degree = 2;
      recipe.parallelism.zero = zero;
      const std::vector<StepMetrics> steps = run(recipe);
      if (zero == 0) zero0 = steps;
      ASSERT_EQ(steps.size(), 3U);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        EXPECT_EQ(steps[i].loss, zero0[i].loss) << reduce << ", stage " << zero;
        EXPECT_EQ(steps[i].grad_norm, zero0[i].grad_norm) << reduce << ", stage " << zero;
      }
    }
  }
}

// Checkpoints have the masters, so a stage goes on where another ended.
TEST(Dtypes, Bf16GoesOnAtAnotherStage) {
  const ScratchFolder folder;
  Recipe recipe = with_dtypes({"float32", "bfloat16", "bfloat16"});
  recipe.training.steps = 4;
  recipe.lr_scheduler.warmup_steps = 1;
  recipe.lr_scheduler.decay_ratio = 0;  // so that rates do not depend on the number of steps
  recipe.parallelism.data_parallel_shard_degree = 2;
  recipe.parallelism.zero = 3;
  const std::vector<StepMetrics> whole = run(recipe);
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  Recipe half = recipe;
  half.training.steps = 2;
  half.parallelism.zero = 0;
  std::vector<StepMetrics> steps = run(half);
  train(recipe, words(recipe.training.seq_len),
        {.on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }, .resume = true});
  ASSERT_EQ(steps.size(), 4U);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].loss, whole[i].loss) << i;
    EXPECT_EQ(steps[i].grad_norm, whole[i].grad_norm) << i;
  }
}

// Tables, norms and matrices of bf16 that ranks along tp share.
TEST(Dtypes, Bf16OnAMeshIsNearOneRank) {
  for (const bool tied : {false, true}) {
    Recipe recipe = with_dtypes({"float32", "bfloat16"});
    recipe.model.name = "llama";
    recipe.model.enable_weight_tying = tied;
    recipe.training.steps = 5;
    const std::vector<StepMetrics> one = run(recipe);
    recipe.training.check_replicas = 1;
    recipe.parallelism.context_parallel_degree = 2;
    recipe.parallelism.tensor_parallel_degree = 2;
    for (const int zero : {1, 3}) {
      recipe.parallelism.zero = zero;
      const std::vector<StepMetrics> mesh = run(recipe);
      ASSERT_EQ(mesh.size(), 5U);
      for (std::size_t i = 0; i < mesh.size(); ++i) {
        EXPECT_NEAR(mesh[i].loss, one[i].loss, 0.01 * one[i].loss) << tied << ' ' << zero;
        EXPECT_NEAR(mesh[i].grad_norm, one[i].grad_norm, 0.05 * one[i].grad_norm)
            << tied << ' ' << zero;
      }
    }
  }
}

TEST(Dtypes, GradientsThatTravelInBf16CostARounding) {
  Recipe recipe = with_dtypes({});
  recipe.training.steps = 5;
  recipe.parallelism.context_parallel_degree = 2;
  const std::vector<StepMetrics> wide = run(recipe);
  recipe.training.mixed_precision_reduce = "bfloat16";
  const std::vector<StepMetrics> narrow = run(recipe);
  EXPECT_EQ(narrow.front().loss, wide.front().loss);
  EXPECT_NE(narrow.front().grad_norm, wide.front().grad_norm);
  EXPECT_NEAR(narrow.front().grad_norm, wide.front().grad_norm, 0.01 * wide.front().grad_norm);
  EXPECT_NEAR(narrow.back().loss, wide.back().loss, 0.01 * wide.back().loss);
}

TEST(Dtypes, Fp64ResumesBitForBitAndIsExported) {
  const ScratchFolder folder;
  Recipe recipe = with_dtypes(kAllFp64);
  recipe.training.steps = 4;
  recipe.lr_scheduler.warmup_steps = 1;
  recipe.lr_scheduler.decay_ratio = 0;  // so that rates do not depend on the number of steps
  recipe.parallelism.context_parallel_degree = 2;
  const std::vector<StepMetrics> whole = run(recipe);
  recipe.job.dump_folder = folder.path("run");
  recipe.checkpoint.enable = true;
  Recipe half = recipe;
  half.training.steps = 2;
  std::vector<StepMetrics> steps = run(half);
  const auto resume = [&](const Recipe& with) {
    const TrainOptions options{
        .on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); }, .resume = true};
    return train(with, words(with.training.seq_len), options).checkpoint;
  };
  Recipe fp32 = recipe;
  fp32.training.dtype = fp32.training.mixed_precision_param = "float32";
  EXPECT_THAT([&] { resume(fp32); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("training.dtype = \"float32\" given; training.dtype = \"float64\"")));
  const std::string checkpoint = resume(recipe);
  ASSERT_EQ(steps.size(), whole.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].loss, whole[i].loss) << i;
    EXPECT_EQ(steps[i].grad_norm, whole[i].grad_norm) << i;
  }

  // The last parameters, in a store of fp64 as they are; one of fp32 would lose digits.
  export_model(checkpoint, folder.path("model"), FolderFormat::Armillary);
  Store store(*make_model(recipe), 1, {}, dtypes_of(recipe.training));
  load_parameters(folder.path("model"), recipe.model, store);
  EXPECT_THAT(
      [&] {
        Store narrow(*make_model(fp32), 1);
        load_parameters(folder.path("model"), fp32.model, narrow);
      },
      ThrowsMessage<IoError>(HasSubstr("is F64 [")));
  double beyond_fp32 = 0;
  for (const Piece& piece : store.pieces()) {
    beyond_fp32 += (piece.value - piece.value.to(at::kFloat)).abs().sum().item<double>();
  }
  EXPECT_GT(beyond_fp32, 0);
}

/// Shares of ranks differ by rows; those of all ranks together are the formulas.
TEST(Dtypes, TheEstimateHasTheBytesOfTheStores) {
  for (const DtypeNames& names :
       {DtypeNames{}, kAllFp64, {"float32", "bfloat16"}, {"float32", "bfloat16", "bfloat16"}}) {
    for (int zero = 0; zero <= 3; ++zero) {
      Recipe recipe = with_dtypes(names);
      recipe.parallelism.data_parallel_shard_degree = 2;
      recipe.parallelism.zero = zero;
      if (zero % 2 == 1) {
        recipe.model.name = "llama";
        recipe.model.head_dim = 10;
        recipe.model.qkv_bias = recipe.model.qk_norm = true;
      }
      std::atomic<std::int64_t> bytes = 0;
      comm::run_ranks(2, [&](comm::Communicator& comm) {
        const Store store(*make_model(recipe), 1, {.sharded = &comm, .zero = zero},
                          dtypes_of(recipe.training));
        bytes += store.bytes_at_rest();
      });
      const cost::StepMemory memory = estimate(recipe, words(recipe.training.seq_len)).memory;
      EXPECT_EQ(2 * (memory.parameters + memory.gradients + memory.optimizer),
                static_cast<double>(bytes.load()))
          << names.dtype << ' ' << names.param << ", stage " << zero;
    }
  }
}

TEST(Dtypes, SumsInBf16SendHalf) {
  Recipe recipe = with_dtypes({"float32", "bfloat16"});
  recipe.parallelism.data_parallel_shard_degree = 2;
  recipe.parallelism.zero = 0;
  const PackedText data = words(recipe.training.seq_len);
  const std::int64_t wide = estimate(recipe, data).gradient_sent_bytes;
  EXPECT_THAT(describe(recipe, estimate(recipe, data)), HasSubstr("gradients in float32"));
  recipe.training.mixed_precision_reduce = "bfloat16";
  EXPECT_EQ(2 * estimate(recipe, data).gradient_sent_bytes, wide);
  EXPECT_THAT(describe(recipe, estimate(recipe, data)), HasSubstr("gradients in bfloat16"));
  // A sum and a gather of bf16 are those of one sum in both directions.
  recipe.parallelism.zero = 1;
  EXPECT_EQ(2 * estimate(recipe, data).gradient_sent_bytes, wide);
}

}  // namespace
}  // namespace armillary::train
