// recipe_parts_test.cpp: keys of a recipe against each other: what validate() refuses, and which
// settings do nothing.
#include "armillary/train/recipe_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/core/error.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/recipe.h"
#include "armillary/train/testing/picture_file.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

Recipe recipe_with(const std::string& setting) {
  Recipe recipe;
  apply_setting(recipe, setting);
  return recipe;
}

template <class... Texts>
void expect_invalid(const std::string& setting, const Texts&... texts) {
  EXPECT_THAT([&] { validate(recipe_with(setting)); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(texts)...)))
      << setting;
}

TEST(Recipe, ValidateRefusesWhatCrossesKeys) {
  validate(Recipe());
  expect_invalid("model.n_heads=3", "model.n_heads 3 with model.dim 128", "nearest: n_heads 2");
  expect_invalid("model.n_kv_heads=3", "model.n_kv_heads 3 with model.n_heads 4", "nearest: 2");
  expect_invalid("parallelism.pipeline_parallel_degree=2",
                 "mesh: pp 2, an axis that is not built yet; 1 is required; nearest: pp 1");
  expect_invalid("parallelism.data_parallel_replicate_degree=3",
                 "training.global_batch_size = 1 on 3 ranks along dp");
  expect_invalid("training.local_batch_size=2",
                 "a multiple of 2 is required; nearest: training.global_batch_size = 2");
  expect_invalid("parallelism.tensor_parallel_degree=8", "over tp 8; ", "nearest: tp 4");
  expect_invalid("parallelism.tensor_parallel_keep_inputs=true", "where nothing is gathered");
  expect_invalid("parallelism.reshard_after_forward=false",
                 "parallelism.reshard_after_forward is false with zero = 1, where parameters are "
                 "whole; true is required; nearest: zero = 3");
  Recipe alone = recipe_with("parallelism.zero=3");
  validate(alone);
  alone.parallelism.reshard_after_forward = false;
  EXPECT_THAT([&] { validate(alone); },
              ThrowsMessage<InvalidArgument>(HasSubstr("context_parallel_degree 1, where")));
  alone.parallelism.context_parallel_degree = 2;
  validate(alone);
  expect_invalid("parallelism.wire=input", "where nothing of attention travels");
  alone.parallelism.transfer_dtype = "input";
  EXPECT_THAT([&] { validate(alone); },
              ThrowsMessage<InvalidArgument>(HasSubstr("accumulator has the same dtype")));
  alone.training.mixed_precision_param = "bfloat16";
  validate(alone);
  EXPECT_EQ(Recipe().model.vocab_size, kVocabSize);
  expect_invalid("model.vocab_size=256",
                 "recipe: model.vocab_size 256; at least 257, the vocabulary of the data, is "
                 "required; nearest: 257");
  validate(recipe_with("model.vocab_size=50257"));
  Recipe own_data = recipe_with("model.vocab_size=256");
  validate(own_data, 256);
  Recipe gpt2 = recipe_with("model.name=gpt2");
  validate(gpt2);
  gpt2.model.max_seq_len = 1000;
  EXPECT_THAT([&] { validate(gpt2); },
              ThrowsMessage<InvalidArgument>(
                  "recipe: training.seq_len 4096 with model.max_seq_len 1000; at most max_seq_len, "
                  "the learned positions, is required; nearest: 1000"));
  gpt2.training.seq_len = 1000;
  validate(gpt2);
  // Heads of an odd width have nothing to rotate.
  gpt2.model.dim = 99;
  gpt2.model.n_heads = 3;
  validate(gpt2);
  gpt2.model.n_heads = 4;
  EXPECT_THAT([&] { validate(gpt2); },
              ThrowsMessage<InvalidArgument>("recipe: model.n_heads 4 with model.dim 99; n_heads "
                                             "must divide dim; nearest: n_heads 3"));
  expect_invalid("parallelism.strategy=rin", "ring");
  expect_invalid("parallelism.layout=zigzug", "zigzag");
  expect_invalid("parallelism.mask=causl", "causal");
  expect_invalid("parallelism.mask=documents:within=ful", "full");
  expect_invalid("parallelism.mask=documents:5,5", "4096");
  Recipe huge = recipe_with("model.dim=2147483640");
  huge.model.n_layers = 2147483647;
  EXPECT_THAT([&] { validate(huge); }, ThrowsMessage<InvalidArgument>(HasSubstr("overflows")));
}

// A model knows no masks: without this one it would be trained as another one.
TEST(Recipe, AWindowIsThatOfTheMask) {
  for (const std::string name : {"llama", "moe"}) {
    Recipe recipe = recipe_with("model.name=" + name);
    recipe.model.sliding_window = 100;
    EXPECT_THAT(
        [&] { validate(recipe); },
        ThrowsMessage<InvalidArgument>(HasSubstr("with model.sliding_window 100; a mask that ")))
        << name;
    recipe.parallelism.mask = "documents:within=window,left=99,right=0";
    validate(recipe);
  }
}

// Words and modulations of a dit.
TEST(Recipe, WordsThatAreNotThereAreRefused) {
  Recipe recipe = small_dit_recipe();
  recipe.model.words = "cross";
  const auto refused = [&](const std::string& text) {
    EXPECT_THAT([&] { validate(recipe); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused(
      "recipe: model.words cross with model.text_tokens 0, where there are no words; at least "
      "1 is required; nearest: model.words = joint");
  recipe = small_cross_dit_recipe();
  validate(recipe);
  recipe.training.seq_len = 20;
  refused("in patches of 2 and 0 words; 15, all of them, is required");
  recipe = small_cross_dit_recipe();
  recipe.parallelism.tensor_parallel_degree = 8;
  refused("over tp 8; ");
  recipe = small_dit_recipe();
  EXPECT_THAT([&] { apply_setting(recipe, "model.words=cros"); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("joint or cross is required"), HasSubstr("nearest: cross"))));
  EXPECT_THAT([&] { apply_setting(recipe, "model.modulation=singl"); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("zero or single is required"), HasSubstr("nearest: single"))));
  Recipe gpt;
  EXPECT_THAT([&] { apply_setting(gpt, "model.modulation=single"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("nearest: model.name = \"dit\"")));
}

// Saved by nobody: a reader would believe in checkpoints that are not there.
TEST(Recipe, KeysOfCheckpointsThatAreNotSavedAreRefused) {
  expect_invalid(
      "checkpoint.interval=100",
      "recipe: checkpoint.interval = 100 with checkpoint.enable = false, where nothing is "
      "saved; 500, the default, is required; nearest: checkpoint.enable = true");
  expect_invalid("checkpoint.keep_latest_k=0", "checkpoint.keep_latest_k = 0 with ", "; 10, the ");
  Recipe saving = recipe_with("checkpoint.interval=100");
  saving.checkpoint.enable = true;
  validate(saving);
}

// An axis of 1 is legal with any of these, and their reader is told.
TEST(Recipe, SettingsWithoutEffectAreTold) {
  EXPECT_THAT(settings_without_effect(Recipe()), IsEmpty());
  Recipe recipe = recipe_with("parallelism.zero=3");
  recipe.parallelism.strategy = "ulysses";
  recipe.parallelism.layout = "striped";
  recipe.training.check_replicas = 7;
  validate(recipe);
  EXPECT_THAT(
      settings_without_effect(recipe),
      ElementsAre("parallelism.zero = 3 has no effect with data_parallel_shard_degree 1 and "
                  "context_parallel_degree 1, where nothing is divided",
                  "parallelism.strategy = ulysses has no effect with "
                  "context_parallel_degree 1, where no sequence is spread",
                  "parallelism.layout = striped has no effect with "
                  "context_parallel_degree 1, where no sequence is spread",
                  "training.check_replicas = 7 has no effect with one rank"));
  recipe.parallelism.strategy = "auto:cluster=c1";  // chooses for any mesh
  recipe.parallelism.tensor_parallel_degree = 2;
  EXPECT_THAT(settings_without_effect(recipe),
              ElementsAre(HasSubstr("parallelism.zero = 3 "), HasSubstr("parallelism.layout = ")));
  recipe.parallelism.data_parallel_replicate_degree = 2;  // Copies divide nothing either.
  EXPECT_THAT(settings_without_effect(recipe), Contains(HasSubstr("parallelism.zero = 3 ")));
  recipe.parallelism.context_parallel_degree = 2;
  EXPECT_THAT(settings_without_effect(recipe), IsEmpty());
  recipe.training.validation_path = "held_out";
  recipe.training.spike_window = 9;
  recipe.training.spike_skip = "none";
  EXPECT_THAT(
      settings_without_effect(recipe),
      ElementsAre("training.validation_path = held_out has no effect with validation_interval 0, "
                  "where nothing is validated",
                  "training.spike_window = 9 has no effect with spike_guard none, where no step is "
                  "judged",
                  "training.spike_skip = none has no effect with spike_guard none, where no run "
                  "goes back"));
  recipe.training.spike_guard = "stop";
  recipe.training.validation_interval = 1;
  EXPECT_THAT(settings_without_effect(recipe), ElementsAre(HasSubstr("training.spike_skip = ")));
  recipe.training.spike_guard = "rollback";
  EXPECT_THAT(settings_without_effect(recipe), IsEmpty());
  recipe.metrics.save_tb_folder = "events";
  EXPECT_THAT(
      settings_without_effect(recipe),
      ElementsAre("metrics.save_tb_folder = events has no effect with enable_tensorboard false"));
  // Ranks along tp divide experts that they all have.
  Recipe experts = recipe_with("parallelism.zero=3");
  experts.model.name = "moe";
  experts.parallelism.tensor_parallel_degree = 2;
  EXPECT_THAT(settings_without_effect(experts), IsEmpty());
  experts.parallelism.expert_parallel_degree = 2;
  EXPECT_THAT(settings_without_effect(experts),
              ElementsAre(HasSubstr("parallelism.zero = 3 has no effect")));
}

TEST(Recipe, ADecayThatChangesNoRateHasNoOtherKeys) {
  Recipe recipe;
  const auto expect_refused = [&](const std::string& text) {
    EXPECT_THAT([&] { validate(recipe); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  recipe.lr_scheduler.decay_ratio = 0;
  validate(recipe);
  recipe.lr_scheduler.min_lr_factor = 0.5;
  expect_refused("lr_scheduler.min_lr_factor = 0.5 with lr_scheduler.decay_ratio = 0, where no");
  recipe.lr_scheduler.decay_type = "linear";
  expect_refused(
      "recipe: lr_scheduler.decay_type = linear with lr_scheduler.decay_ratio = 0, where no rate "
      "decays; cosine, the default, is required");
  recipe.lr_scheduler = {.min_lr_factor = 1};
  validate(recipe);
  recipe.lr_scheduler.decay_ratio = 0.5;
  expect_refused("lr_scheduler.decay_ratio = 0.5 with lr_scheduler.min_lr_factor = 1, where no");
  recipe.lr_scheduler.min_lr_factor = 0.5;
  validate(recipe);
}

TEST(Recipe, ValidateRefusesOddWidthsAndNoFolder) {
  expect_invalid("model.dim=129", "model.dim 129; an even number is required", "nearest: 130");
  expect_invalid("job.dump_folder=", "job.dump_folder is empty; a folder is required");
  expect_invalid("training.spike_guard=rollback", "checkpoint.enable = false",
                 "nearest: training.spike_guard = stop");
  Recipe events = recipe_with("metrics.enable_tensorboard=true");
  EXPECT_NO_THROW(validate(events));
  events.metrics.save_tb_folder = "";
  EXPECT_THAT([&] { validate(events); },
              ThrowsMessage<InvalidArgument>(HasSubstr("metrics.save_tb_folder is empty")));
}

}  // namespace
}  // namespace armillary::train
