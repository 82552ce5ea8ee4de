// recipe_test.cpp: recipes as files and settings: every key, its range and its refusal with the
// nearest; a printed recipe is read back as the same.
#include "armillary/train/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/train/recipe_parts.h"

namespace armillary::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

Recipe with(const std::string& setting) {
  Recipe recipe;
  apply_setting(recipe, setting);
  return recipe;
}

/// Expects the error of a refused recipe to be one line that has all of `texts`.
template <class... Texts>
void expect_error(const std::string& toml, const Texts&... texts) {
  EXPECT_THAT([&] { parse_recipe(toml, "r.toml"); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(texts)..., Not(HasSubstr("\n")))))
      << toml;
}

TEST(Recipe, ReadsEveryType) {
  const Recipe recipe = parse_recipe(
      "[model]\nn_layers = 6\nenable_weight_tying = true\n"
      "[optimizer]\nlr = 1e-4\nweight_decay = 0\n[training]\ndataset_path = \"a \\\"b\\\"\"\n"
      "max_norm = inf\n",
      "r.toml");
  EXPECT_EQ(recipe.model.n_layers, 6);
  EXPECT_TRUE(recipe.model.enable_weight_tying);
  EXPECT_EQ(recipe.optimizer.lr, 1e-4);
  EXPECT_EQ(recipe.optimizer.weight_decay, 0);
  EXPECT_EQ(recipe.training.dataset_path, "a \"b\"");
  EXPECT_EQ(recipe.training.max_norm, std::numeric_limits<double>::infinity());
  EXPECT_EQ(recipe.model.dim, Recipe().model.dim);
}

TEST(Recipe, UnknownNamesAreRefusedWithTheNearest) {
  expect_error("[optimizer]\nname = \"SGD\"\n",
               "recipe: r.toml:2: optimizer.name 'SGD' is not known; AdamW or Adam is required");
  expect_error("[optimizer]\nstate_device = \"hosts\"\n", "optimizer.state_device 'hosts'",
               "device or host is required", "nearest: host");
  expect_error("\n[trainning]\nsteps = 1\n", "recipe: r.toml:2: ", "section 'trainning'",
               "nearest: training");
  expect_error("[training]\nsteps = 1\nseq_length = 4\n", "r.toml:3: ", "'seq_length'",
               "nearest: seq_len");
  expect_error("steps = 1\n", "r.toml:1: steps is an integer outside any section");
  expect_error("[lr_scheduler]\ndecay_type = \"cosin\"\n", "lr_scheduler.decay_type 'cosin'",
               "linear, sqrt or cosine is required", "nearest: cosine");
}

TEST(Recipe, KeysOfAnotherModelAreRefused) {
  expect_error("[model]\nmultiple_of = 32\n", "r.toml:2: key of [model] 'multiple_of' belongs to ",
               "name, dim, ", "nearest: model.name = \"llama\"");
  expect_error("[model]\nname = \"llama\"\nmultipleof = 3\n", "'multipleof' is not known",
               "nearest: multiple_of");
  expect_error("[model]\nname = \"lama\"\n", "r.toml:2: model.name 'lama'",
               "gpt, gpt2, llama, moe or dit", "nearest: llama");
  expect_error("[model]\nname = 3\n", "model.name is an integer");
  // A key of a model may stand before model.name, in a file and in settings.
  const Recipe recipe = parse_recipe("[model]\nmultiple_of = 32\nname = \"llama\"\n", "r.toml");
  EXPECT_EQ(recipe.model.multiple_of, 32);
  EXPECT_EQ(parse_recipe(print_recipe(recipe), "again").model.multiple_of, 32);
  EXPECT_THAT(print_recipe(Recipe()), testing::Not(HasSubstr("multiple_of")));

  // A setting that names another model, whose recipe has given such a key.
  Recipe llama = parse_recipe("[model]\nname = \"llama\"\nmultiple_of = 32\n", "r.toml");
  EXPECT_THAT([&] { apply_setting(llama, "model.name=gpt"); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("recipe: --set model.name=gpt: key of [model] 'multiple_of' "
                                  "belongs to another model; name, dim, "),
                        HasSubstr("nearest: model.name = \"llama\""))));
  Recipe untouched = parse_recipe("[model]\nname = \"llama\"\n", "r.toml");
  apply_setting(untouched, "model.name=gpt");
  EXPECT_EQ(untouched.model.name, "gpt");
}

/// gpt2 has learned positions in the place of rotary ones, and another default.
TEST(Recipe, KeysOfGpt2AreItsOwn) {
  const std::string gpt2 = "[model]\nname = \"gpt2\"\n";
  const auto parsed = [&](const std::string& line) {
    return parse_recipe(gpt2 + line + "\n", "r.toml").model;
  };
  EXPECT_EQ(parsed("max_seq_len = 1024").max_seq_len, 1024);
  EXPECT_TRUE(parsed("").enable_weight_tying);
  EXPECT_FALSE(parsed("enable_weight_tying = false").enable_weight_tying);
  expect_error(gpt2 + "rope_theta = 5\n", "r.toml:3: key of [model] 'rope_theta' belongs to ",
               "max_seq_len or enable_weight_tying is required; nearest: model.name = \"gpt\"");
  expect_error(gpt2 + "multiple_of = 5\n", "nearest: model.name = \"llama\"");
  expect_error("[model]\nmax_seq_len = 5\n", "nearest: model.name = \"gpt2\"");
  expect_error(gpt2 + "max_seq_len = 0\n",
               "r.toml:3: model.max_seq_len = 0; a value between 1 and 2147483647 is required");
  const Recipe recipe = parse_recipe(gpt2 + "enable_weight_tying = false\n", "r.toml");
  EXPECT_EQ(print_recipe(parse_recipe(print_recipe(recipe), "again")), print_recipe(recipe));
  EXPECT_THAT(print_recipe(recipe), Not(HasSubstr("rope_theta")));

  // A setting that names the model brings its default, unless the recipe has another value.
  Recipe other;
  apply_setting(other, "model.name=gpt2");
  EXPECT_TRUE(other.model.enable_weight_tying);
  apply_setting(other, "model.name=llama");
  EXPECT_FALSE(other.model.enable_weight_tying);
  Recipe tied = with("model.enable_weight_tying=true");
  apply_setting(tied, "model.name=llama");
  EXPECT_TRUE(tied.model.enable_weight_tying);
  Recipe untied = with("model.name=gpt2");
  apply_setting(untied, "model.enable_weight_tying=false");
  apply_setting(untied, "training.steps=3");
  EXPECT_FALSE(untied.model.enable_weight_tying);
}

TEST(Recipe, KeysOfLlamaHaveTheirRanges) {
  const std::string llama = "[model]\nname = \"llama\"\n";
  const auto parsed = [&](const std::string& line) {
    return parse_recipe(llama + line + "\n", "r.toml").model;
  };
  EXPECT_EQ(parsed("multiple_of = 1").multiple_of, 1);
  EXPECT_EQ(parsed("multiple_of = 2147483647").multiple_of, 2147483647);
  EXPECT_EQ(parsed("ffn_dim_multiplier = 1e9").ffn_dim_multiplier, 1e9);
  const auto refused = [&](const std::string& line, const std::string& required) {
    expect_error(llama + line + "\n", "r.toml:3: model." + line, required);
  };
  refused("multiple_of = 0", "between 1 and 2147483647 is required");
  refused("multiple_of = 2147483648", "between 1 and 2147483647 is required");
  for (const char* factor : {"0.0", "nan", "inf"}) {
    refused(std::string("ffn_dim_multiplier = ") + factor, "above 0, at most 1000000000");
  }
}

TEST(Recipe, MemoryKeysAreRefusedLikeAllOthers) {
  EXPECT_EQ(with("activation_checkpoint.mode=attention_output").activation_checkpoint.mode,
            "attention_output");
  expect_error("[activation_checkpoint]\nmode = \"attention_outputs\"\n",
               "activation_checkpoint.mode 'attention_outputs'",
               "none, full or attention_output is required", "nearest: attention_output");
  expect_error("[activation_checkpoint]\nmode = \"ful\"\n", "nearest: full");
  expect_error("[activation_checkpoints]\n", "nearest: activation_checkpoint");
  expect_error("[training]\nloss_chunk_tokens = 0\n",
               "training.loss_chunk_tokens = 0; a value between 1 and");
}

TEST(Recipe, WrongTypesAreRefused) {
  expect_error("[training]\nsteps = \"10\"\n",
               "r.toml:2: training.steps is a string; an integer is required");
  expect_error("[training]\nsteps = 10.0\n", "training.steps is a number with a fraction");
  expect_error("[optimizer]\nlr = true\n", "optimizer.lr is a boolean; a number is required");
  expect_error("[optimizer]\nlr = [1]\n", "optimizer.lr is an array");
  expect_error("[optimizer]\nlr = 2024-01-01\n", "optimizer.lr is a date or time");
  expect_error("[job]\ndump_folder = 1\n", "job.dump_folder is an integer; a string");
  expect_error("[model.dim]\n", "model.dim is a table");
}

TEST(Recipe, ValuesOutOfRangeAreRefused) {
  expect_error("[training]\nseq_len = 0\n", "training.seq_len = 0; a value between 1 and");
  expect_error("[training]\nseed = -1\n", "training.seed = -1; a value at least 0 is required");
  expect_error("[optimizer]\nlr = nan\n", "optimizer.lr = nan; a value above 0 is required");
  expect_error("[optimizer]\nlr = inf\n", "optimizer.lr = inf");
  expect_error("[optimizer]\nbeta2 = 1\n", "optimizer.beta2 = 1.0; a value at least 0 and below 1");
  expect_error("[training]\nsteps = 99999999999999999999\n", "r.toml:2: ", "TOML is required");
  expect_error("[training\n", "r.toml:1: ", "TOML is required");
  expect_error("[training]\nsteps = 1\nsteps = 2\n", "r.toml:3: ");
}

TEST(Recipe, SettingsAreTomlOrBareStrings) {
  EXPECT_EQ(with("training.steps=7").training.steps, 7);
  EXPECT_EQ(with("parallelism.mask=window:left=4,right=0").parallelism.mask,
            "window:left=4,right=0");
  EXPECT_EQ(with("job.description='x = y'").job.description, "x = y");
  EXPECT_EQ(with("training.dataset_path=").training.dataset_path, "");
  const auto refused = [](const std::string& setting, const std::string& text) {
    EXPECT_THAT([&] { with(setting); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused("training.steps", "--set training.steps: it has no '.' or no '='");
  refused("steps=3", "section.key=value is required");
  refused("training.step=3", "nearest: steps");
  refused("training.steps=", "'' given; an integer is required");
  refused("training.steps=many", "'many' given; an integer is required");
  refused("training.steps=1.5", "an integer is required");
}

TEST(Recipe, PrintRoundTrips) {
  Recipe recipe = with("training.dataset_path=a \"quoted\" \\ path\twith tab");
  recipe.optimizer.lr = 0.1 + 0.2;
  recipe.training.max_norm = std::numeric_limits<double>::infinity();
  recipe.training.seed = std::numeric_limits<std::int64_t>::max();
  const std::string text = print_recipe(recipe);
  const Recipe again = parse_recipe(text, "printed");
  EXPECT_EQ(print_recipe(again), text);
  EXPECT_EQ(again.training.dataset_path, recipe.training.dataset_path);
  EXPECT_EQ(again.optimizer.lr, recipe.optimizer.lr);
  EXPECT_EQ(again.training.max_norm, recipe.training.max_norm);
  EXPECT_EQ(again.training.seed, recipe.training.seed);
}

// An older version called the global batch local_batch_size.
TEST(Recipe, TheBatchOfAnOlderCheckpointIsTheGlobalOne) {
  using Batches = std::pair<std::int64_t, std::int64_t>;
  const auto batches = [](const std::string& text) {
    const TrainingOptions training = parse_saved_recipe("[training]\n" + text, "saved").training;
    return Batches(training.global_batch_size, training.local_batch_size);
  };
  EXPECT_EQ(batches("local_batch_size = 6"), Batches(6, 1));
  EXPECT_EQ(batches("global_batch_size = 6\nlocal_batch_size = 2"), Batches(6, 2));
  EXPECT_EQ(batches("global_batch_size = 6"), Batches(6, 1));
  const std::string note = "\n[job]\ndescription = \"no global_batch_size yet\"";
  EXPECT_EQ(batches("local_batch_size = 6  # not global_batch_size" + note), Batches(6, 1));
  EXPECT_EQ(batches("global_batch_size = 6\nlocal_batch_size = 2" + note), Batches(6, 2));
}

TEST(Recipe, FilesThatAreNoRecipesAreRefused) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  EXPECT_THAT([&] { load_recipe(folder); },
              ThrowsMessage<IoError>(HasSubstr("'" + folder + "' is a folder; a TOML file")));
  EXPECT_THAT([&] { load_recipe(folder + "/no_such_recipe.toml"); },
              ThrowsMessage<IoError>(HasSubstr("does not exist; a TOML file is required")));
}

TEST(Recipe, DefaultRecipeIsValid) {
  const auto root = std::filesystem::path(__FILE__).parent_path() / "../..";
  const Recipe recipe = load_recipe((root / "recipes/default.toml").string());
  validate(recipe);
  EXPECT_GE(recipe.model.n_layers, 4);
  EXPECT_GE(recipe.training.seq_len, 4096);
  EXPECT_EQ(recipe.parallelism.context_parallel_degree, 4);
}

// Degrees of each divide what they share, and its batch.
TEST(Recipe, EveryRecipeThatIsShippedIsValid) {
  const auto root = std::filesystem::path(__FILE__).parent_path() / "../../recipes";
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".toml") continue;
    SCOPED_TRACE(entry.path().string());
    EXPECT_NO_THROW(validate(load_recipe(entry.path().string())));
    ++count;
  }
  EXPECT_GE(count, 3);
}

/// A recipe with another value for every key.
TEST(Recipe, EveryKeyIsTheMemberOfItsName) {
  const Recipe r = parse_recipe(R"(
[job]
dump_folder = "dump"
description = "describe"
[model]
name = "gpt"
dim = 2
n_layers = 3
n_heads = 4
n_kv_heads = 5
hidden_dim = 6
vocab_size = 27
norm_eps = 7
rope_theta = 8
enable_weight_tying = true
[training]
dataset_path = "path"
dataset_extensions = "extensions"
seq_len = 9
global_batch_size = 10
local_batch_size = 27
steps = 11
max_norm = 12
dtype = "float64"
mixed_precision_param = "bfloat16"
mixed_precision_reduce = "bfloat16"
loss_chunk_tokens = 13
seed = 14
check_replicas = 30
validation_path = "validation"
validation_interval = 32
validation_sequences = 33
spike_guard = "stop"
spike_loss_factor = 34
spike_norm_factor = 35
spike_window = 36
spike_skip = "none"
spike_rollbacks = 37
[activation_checkpoint]
mode = "full"
[optimizer]
name = "AdamW"
lr = 15
beta1 = 0.16
beta2 = 0.17
eps = 18
weight_decay = 19
state_device = "host"
[lr_scheduler]
warmup_steps = 20
decay_ratio = 0.21
decay_type = "sqrt"
min_lr_factor = 0.22
[parallelism]
data_parallel_replicate_degree = 28
data_parallel_shard_degree = 29
context_parallel_degree = 23
tensor_parallel_degree = 31
expert_parallel_degree = 32
tensor_parallel_keep_inputs = true
zero = 3
reshard_after_forward = false
threads_per_rank = 24
strategy = "strategy"
layout = "layout"
mask = "mask"
wire = "input"
[comm]
train_timeout_seconds = 25
[metrics]
log_freq = 26
enable_tensorboard = true
save_tb_folder = "tb"
cluster = "c6"
)",
                                "r.toml");
  const auto is = [](const auto& value, const auto& expected, const char* key) {
    EXPECT_EQ(value, expected) << key;
  };
  is(r.job.dump_folder, "dump", "dump_folder");
  is(r.job.description, "describe", "description");
  is(r.model.dim, 2, "dim");
  is(r.model.n_layers, 3, "n_layers");
  is(r.model.n_heads, 4, "n_heads");
  is(r.model.n_kv_heads, 5, "n_kv_heads");
  is(r.model.hidden_dim, 6, "hidden_dim");
  is(r.model.vocab_size, 27, "vocab_size");
  is(r.model.norm_eps, 7, "norm_eps");
  is(r.model.rope_theta, 8, "rope_theta");
  is(r.model.enable_weight_tying, true, "enable_weight_tying");
  is(r.training.dataset_path, "path", "dataset_path");
  is(r.training.dataset_extensions, "extensions", "dataset_extensions");
  is(r.training.seq_len, 9, "seq_len");
  is(r.training.global_batch_size, 10, "global_batch_size");
  is(r.training.local_batch_size, 27, "local_batch_size");
  is(r.training.steps, 11, "steps");
  is(r.training.max_norm, 12, "max_norm");
  is(r.training.dtype, "float64", "dtype");
  is(r.training.mixed_precision_param, "bfloat16", "mixed_precision_param");
  is(r.training.mixed_precision_reduce, "bfloat16", "mixed_precision_reduce");
  is(r.training.loss_chunk_tokens, 13, "loss_chunk_tokens");
  is(r.training.seed, 14, "seed");
  is(r.training.check_replicas, 30, "check_replicas");
  is(r.training.validation_path, "validation", "validation_path");
  is(r.training.validation_interval, 32, "validation_interval");
  is(r.training.validation_sequences, 33, "validation_sequences");
  is(r.training.spike_guard, "stop", "spike_guard");
  is(r.training.spike_loss_factor, 34, "spike_loss_factor");
  is(r.training.spike_norm_factor, 35, "spike_norm_factor");
  is(r.training.spike_window, 36, "spike_window");
  is(r.training.spike_skip, "none", "spike_skip");
  is(r.training.spike_rollbacks, 37, "spike_rollbacks");
  is(r.activation_checkpoint.mode, "full", "mode");
  is(r.optimizer.lr, 15, "lr");
  is(r.optimizer.beta1, 0.16, "beta1");
  is(r.optimizer.beta2, 0.17, "beta2");
  is(r.optimizer.eps, 18, "eps");
  is(r.optimizer.weight_decay, 19, "weight_decay");
  is(r.optimizer.state_device, "host", "state_device");
  is(r.lr_scheduler.warmup_steps, 20, "warmup_steps");
  is(r.lr_scheduler.decay_ratio, 0.21, "decay_ratio");
  is(r.lr_scheduler.decay_type, "sqrt", "decay_type");
  is(r.lr_scheduler.min_lr_factor, 0.22, "min_lr_factor");
  is(r.parallelism.data_parallel_replicate_degree, 28, "data_parallel_replicate_degree");
  is(r.parallelism.data_parallel_shard_degree, 29, "data_parallel_shard_degree");
  is(r.parallelism.zero, 3, "zero");
  is(r.parallelism.reshard_after_forward, false, "reshard_after_forward");
  is(r.parallelism.tensor_parallel_degree, 31, "tensor_parallel_degree");
  is(r.parallelism.expert_parallel_degree, 32, "expert_parallel_degree");
  is(r.parallelism.tensor_parallel_keep_inputs, true, "tensor_parallel_keep_inputs");
  is(r.parallelism.context_parallel_degree, 23, "context_parallel_degree");
  is(r.parallelism.threads_per_rank, 24, "threads_per_rank");
  is(r.parallelism.strategy, "strategy", "strategy");
  is(r.parallelism.layout, "layout", "layout");
  is(r.parallelism.mask, "mask", "mask");
  is(r.parallelism.transfer_dtype, "input", "wire");
  is(r.comm.train_timeout_seconds, 25, "train_timeout_seconds");
  is(r.metrics.log_freq, 26, "log_freq");
  is(r.metrics.enable_tensorboard, true, "enable_tensorboard");
  is(r.metrics.save_tb_folder, "tb", "save_tb_folder");
  is(r.metrics.cluster, "c6", "cluster");
}

/// Values at the ends of all ranges.
TEST(Recipe, EdgesAreLegalAndWhatLiesBeyondIsRefused) {
  struct RangeEnd {
    const char* key;
    const char* legal;
    const char* refused;
  };
  for (const auto& [key, legal, refused] :
       {RangeEnd{"model.dim", "1", "0"},
        RangeEnd{"model.dim", "2147483647", "2147483648"},
        RangeEnd{"model.n_layers", "1", "0"},
        RangeEnd{"model.n_layers", "4096", "4097"},
        RangeEnd{"model.n_heads", "1", "0"},
        RangeEnd{"model.n_kv_heads", "0", "-1"},
        RangeEnd{"model.hidden_dim", "0", "-1"},
        RangeEnd{"model.vocab_size", "1", "0"},
        RangeEnd{"model.vocab_size", "2147483647", "2147483648"},
        RangeEnd{"model.norm_eps", "1e-300", "0"},
        RangeEnd{"model.rope_theta", "1e-300", "0"},
        RangeEnd{"training.seq_len", "1", "0"},
        RangeEnd{"training.global_batch_size", "1", "0"},
        RangeEnd{"training.global_batch_size", "4096", "4097"},
        RangeEnd{"parallelism.zero", "0", "-1"},
        RangeEnd{"parallelism.zero", "3", "4"},
        RangeEnd{"training.steps", "1", "0"},
        RangeEnd{"training.max_norm", "inf", "0"},
        RangeEnd{"training.seed", "0", "-1"},
        RangeEnd{"training.check_replicas", "0", "-1"},
        RangeEnd{"training.validation_interval", "0", "-1"},
        RangeEnd{"training.validation_sequences", "0", "-1"},
        RangeEnd{"training.spike_loss_factor", "inf", "1"},
        RangeEnd{"training.spike_norm_factor", "1.000001", "1.0"},
        RangeEnd{"training.spike_window", "1", "0"},
        RangeEnd{"training.spike_window", "10000", "10001"},
        RangeEnd{"training.spike_rollbacks", "0", "-1"},
        RangeEnd{"training.loss_chunk_tokens", "1", "0"},
        RangeEnd{"optimizer.lr", "1e-300", "0"},
        RangeEnd{"optimizer.beta1", "0", "-1e-9"},
        RangeEnd{"optimizer.beta1", "0.999999", "1"},
        RangeEnd{"optimizer.beta2", "0", "-1e-9"},
        RangeEnd{"optimizer.eps", "1e-300", "0"},
        RangeEnd{"optimizer.weight_decay", "0", "-1e-9"},
        RangeEnd{"lr_scheduler.warmup_steps", "0", "-1"},
        RangeEnd{"lr_scheduler.decay_ratio", "0", "-1e-9"},
        RangeEnd{"lr_scheduler.decay_ratio", "1", "1.000001"},
        RangeEnd{"lr_scheduler.min_lr_factor", "0", "-1e-9"},
        RangeEnd{"lr_scheduler.min_lr_factor", "1", "1.000001"},
        RangeEnd{"parallelism.context_parallel_degree", "1024", "1025"},
        RangeEnd{"parallelism.threads_per_rank", "1", "0"},
        RangeEnd{"parallelism.threads_per_rank", "1024", "1025"},
        RangeEnd{"comm.train_timeout_seconds", "1e9", "1.1e9"},
        RangeEnd{"comm.train_timeout_seconds", "1e-300", "0"},
        RangeEnd{"metrics.log_freq", "1", "0"}}) {
    const std::string setting = std::string(key) + '=';
    EXPECT_NO_THROW(with(setting + legal)) << setting << legal;
    const auto beyond = [text = setting + refused] { with(text); };
    EXPECT_THAT(beyond, ThrowsMessage<InvalidArgument>(HasSubstr(std::string(key) + " = ")))
        << setting << refused;
  }
}

TEST(Recipe, SettingsAreUtf8) {
  EXPECT_THAT([] { with("job.description=caf\xE9"); },
              ThrowsMessage<InvalidArgument>(
                  "recipe: --set job.description: not UTF-8 at byte 19; UTF-8 is required"));
}

}  // namespace
}  // namespace armillary::train
