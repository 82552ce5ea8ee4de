#include "armillary/train/checkpoint/resumable.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/recipe_parts.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Lines = std::vector<std::string>;

Lines changed(const std::string& setting) {
  Recipe recipe;
  apply_setting(recipe, setting);
  return settings(recipe);
}

Lines unchanged() {
  return settings(Recipe());
}

TEST(Resumable, KeysOfTheRestOfTheRunMayChange) {
  for (const char* setting : {"job.dump_folder=x",
                              "metrics.log_freq=3",
                              "checkpoint.interval=3",
                              "training.steps=7",
                              "comm.train_timeout_seconds=1",
                              "parallelism.context_parallel_degree=3",
                              "optimizer.lr=1",
                              "parallelism.strategy=ulysses",
                              "parallelism.layout=striped",
                              "lr_scheduler.warmup_steps=1",
                              "parallelism.threads_per_rank=2",
                              "training.dataset_path=x",
                              "training.loss_chunk_tokens=3",
                              "training.local_batch_size=2",
                              "activation_checkpoint.mode=full",
                              "parallelism.data_parallel_shard_degree=2",
                              "parallelism.zero=3",
                              "training.mixed_precision_reduce=bfloat16",
                              "optimizer.state_device=host",
                              "training.spike_guard=stop",
                              "training.spike_window=9",
                              "training.validation_interval=2"}) {
    EXPECT_NO_THROW(check_resumable(changed(setting), unchanged())) << setting;
  }
}

/// The balance of experts is training, but a bias is there or not.
TEST(Resumable, TheBalanceOfExpertsMayChange) {
  const auto with = [](const std::vector<std::string>& more) {
    Recipe recipe;
    apply_setting(recipe, "model.name=moe");
    for (const std::string& setting : more) apply_setting(recipe, setting);
    return settings(recipe);
  };
  const Lines biased = with({"model.load_balance_coeff=0.01"});
  EXPECT_NO_THROW(
      check_resumable(with({"model.load_balance_coeff=1e-3", "model.router_aux_loss_coef=0.5",
                            "model.balance_over=batch"}),
                      biased));
  const auto refused = [](const Lines& lines, const Lines& saved) {
    EXPECT_THAT([&] { check_resumable(lines, saved); },
                ThrowsMessage<InvalidArgument>(HasSubstr("model.load_balance_coeff = ")));
  };
  refused(with({}), biased);
  refused(biased, with({}));
}

TEST(Resumable, KeysOfTheModelAndTheDataMayNot) {
  for (const std::string setting :
       {"model.dim = 64", "model.n_kv_heads = 2", "model.norm_eps = 0.5", "training.seq_len = 8",
        "training.global_batch_size = 2", "training.seed = 5", "optimizer.beta1 = 0.5",
        "training.dtype = \"float64\"", "training.mixed_precision_param = \"bfloat16\"",
        "parallelism.mask = \"causal\"", "parallelism.wire = \"input\"",
        "training.dataset_extensions = \".c\""}) {
    const std::string key = setting.substr(0, setting.find(' '));
    const std::string value = setting.substr(setting.rfind(' ') + 1);
    EXPECT_THAT([&] { check_resumable(changed(fmt::format("{}={}", key, value)), unchanged()); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr(fmt::format("checkpoint: {} given; {} = ", setting, key)),
                          HasSubstr(", that of the checkpoint, is required"))));
  }
  EXPECT_THAT([] { check_resumable(changed("model.name=llama"), unchanged()); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("model.name = \"llama\" given; model.name = \"gpt\"")));
}

}  // namespace
}  // namespace armillary::train
