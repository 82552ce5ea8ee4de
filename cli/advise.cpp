// The verb `advise`: a mesh of dp, cp, tp and pp for a step on a described cluster. It
// prints the best mesh with its terms and reasons, a table of others, and USP's Table 2.
#include "armillary/predict/tune/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/predict/cost/known_models.h"
#include "armillary/predict/cost/methods.h"
#include "armillary/predict/tune/advise_decode.h"
#include "cli/advise.h"
#include "cli/mesh_settings.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// The flags of the verb, as they were written.
struct AdviseFlags {
  std::string model;
  std::string cluster;
  std::string seq;
  std::string batch = "1";
  std::string devices;
  std::string mask;  ///< Empty: the usual one of the step.
  std::string step = "train";
  std::string text_tokens;
  std::vector<std::string> settings;
  std::string top = "10";
  bool json = false;
  bool methods = false;
};

double gib(double bytes) {
  return bytes / (1 << 30);
}

/// The question of the model of the flags, a name, a shape or a recipe, on a cluster not yet named.
tune::AdviceQuestion question_of_model(const AdviseFlags& flags, const cost::Step& sizes,
                                       RecipeQuestion question_of) {
  const bool is_dit = sizes.kind == cost::StepKind::Dit;
  if (!flags.text_tokens.empty() && !is_dit) {
    fail<InvalidArgument>("--text-tokens: given with --step {}; --step dit is required",
                          flags.step);
  }
  const int text = flags.text_tokens.empty() ? 0 : parse_count("--text-tokens", flags.text_tokens);
  if (!is_recipe(flags.model) && !flags.settings.empty()) {
    fail<InvalidArgument>("--set: given with model {}; a recipe is required", flags.model);
  }
  if (!is_recipe(flags.model)) {
    tune::AdviceQuestion question{.step = sizes};
    question.step.model = cost::parse_model(flags.model, sizes.kind, text);
    return question;
  }
  if (is_dit) {
    fail<InvalidArgument>(
        "advise: recipe {} given with --step dit; --step train, for a decoder prefill or decode "
        "too, or layers=L,hidden=E,heads=H,ffn=F,vocab=1, is required",
        flags.model);
  }
  if (question_of == nullptr) {
    fail<InvalidArgument>(
        "advise: recipe {} given behind flags, or to a program that was built without libtorch; "
        "armillary advise {} first, and a build with libtorch, are required",
        flags.model, flags.model);
  }
  tune::AdviceQuestion question = question_of(flags.model, flags.settings, sizes);
  question.step.kind = sizes.kind;
  // Keys of training mean nothing to a prefill.
  if (sizes.kind != cost::StepKind::Train) question.check = nullptr;
  return question;
}

tune::AdviceQuestion question(const AdviseFlags& flags, RecipeQuestion question_of) {
  // `decode` is run_decode().
  constexpr std::array<std::string_view, 4> kSteps{"train", "prefill", "dit", "decode"};
  const auto kind = static_cast<cost::StepKind>(parse_choice("--step", flags.step, kSteps));
  tune::AdviceQuestion question =
      question_of_model(flags,
                        {.seq = parse_integer("--seq", flags.seq, {1}),
                         .batch = parse_integer("--batch", flags.batch, {1}),
                         .kind = kind},
                        question_of);
  question.model = flags.model;
  question.cluster = sim::load_cluster(flags.cluster);
  if (!flags.devices.empty()) question.devices = parse_count("--devices", flags.devices);
  if (flags.methods && kind != cost::StepKind::Train) {
    fail<InvalidArgument>(
        "--methods: given with --step {}; the table is of training: --step train "
        "is required",
        flags.step);
  }
  question.microbatch = kind == cost::StepKind::Train ? 0 : 1;
  if (!flags.mask.empty() || !question.mask) {
    const std::string usual = kind == cost::StepKind::Dit ? "full" : "causal";
    question.mask = [mask = flags.mask.empty() ? usual : flags.mask](std::int64_t seq) {
      return plan::parse_mask(mask, {seq, seq});
    };
  }
  return question;
}

/// USP's Table 2 with the numbers of this model.
void print_methods(const tune::AdviceQuestion& request) {
  const int devices = request.devices == 0 ? request.cluster.devices() : request.devices;
  fmt::print("\none layer on each of {}, forward and backward\n\n", count_of(devices, "device"));
  fmt::print(
      "| method | parameter elements sent | activation elements sent | parameters, gradients GiB "
      "| optimizer GiB | activations GiB |\n|---|---|---|---|---|---|\n");
  for (const cost::MethodCost& cost : cost::method_costs(request.step, devices)) {
    fmt::print("| {} | {:.4g} | {:.4g} | {:.3f} | {:.3f} | {:.3f} |\n", cost.method,
               cost.parameter_elements, cost.activation_elements, gib(cost.parameter_bytes),
               gib(cost.optimizer_bytes), gib(cost.activation_bytes));
  }
}

void print_advice(const tune::AdviceQuestion& request, const tune::Advice& advice,
                  std::size_t top) {
  const tune::Advised& best = advice.meshes.front();
  const cost::StepTime& time = best.time;
  fmt::print("{} on {}: {}, batch {}\n  {}\n  attention: {}\n", request.model, request.cluster.name,
             count_of(request.step.seq, "token"), request.step.batch, to_string(best),
             to_string(best.attention));
  fmt::print(
      "  {:.3f} s a step: products {:.3f}, attention {:.3f}, passes over activations {:.3f}, "
      "messages of tp {:.3f}, pipeline {:.3f}, gradients and parameters {:.3f}, optimizer {:.3f}; "
      "hidden {:.3f}\n",
      time.total(), time.products, time.attention, time.passes, time.tensor_parallel, time.pipeline,
      time.gradients, time.optimizer, time.hidden);
  fmt::print("  {:.2f} GiB of {:.2f}; longest sequence that fits: {}\n", gib(best.memory.total()),
             gib(request.cluster.device.memory_bytes), count_of(best.longest_seq, "token"));
  for (const std::string& reason : advice.reasons) fmt::print("  {}\n", reason);
  fmt::print("  longest of all: {} with {}\n\n", count_of(advice.longest.longest_seq, "token"),
             to_string(advice.longest));
  const tune::Advised* const runs = fastest_to_train(advice);
  if (request.step.kind == cost::StepKind::Train && runs != nullptr) {
    fmt::print("{} runs with\n  armillary train RECIPE", to_string(*runs));
    for (const std::string& setting : mesh_settings(*runs)) fmt::print(" --set {}", setting);
    fmt::print(" --set training.global_batch_size={}\n\n", request.step.batch);
  }
  fmt::print("| mesh | s | attention | GiB | longest sequence |\n|---|---|---|---|---|\n");
  for (std::size_t m = 0; m < std::min(top, advice.meshes.size()); ++m) {
    const tune::Advised& one = advice.meshes[m];
    fmt::print("| {} | {:.3f} | {} | {:.2f} | {} |\n", to_string(one), one.time.total(),
               to_string(one.attention), gib(one.memory.total()), one.longest_seq);
  }
}

/// The table of a step of decode.
void run_decode(const AdviseFlags& flags, RecipeQuestion question_of, std::size_t top) {
  if (flags.methods || !flags.mask.empty()) {
    fail<InvalidArgument>("{}: given with --step decode; {} is required",
                          flags.methods ? "--methods" : "--mask",
                          flags.methods ? "--step train" : "causal attention, the default,");
  }
  const cost::Step sizes{.seq = parse_integer("--seq", flags.seq, {1}),
                         .batch = parse_integer("--batch", flags.batch, {1}),
                         .kind = cost::StepKind::Prefill};
  const cost::DecodeStep step{.model = question_of_model(flags, sizes, question_of).step.model,
                              .context = sizes.seq,
                              .sequences = sizes.batch};
  const sim::Cluster cluster = sim::load_cluster(flags.cluster);
  const int devices =
      flags.devices.empty() ? cluster.devices() : parse_count("--devices", flags.devices);
  const std::vector<tune::DecodeMesh> meshes = tune::advise_decode(step, cluster, devices);
  if (flags.json) {
    fmt::print("{}\n", to_json(meshes));
    return;
  }
  fmt::print("{} on {}: a token for each of {}, behind {}; {:.0f} bytes of cache a token\n\n",
             flags.model, cluster.name, count_of(step.sequences, "sequence"),
             count_of(step.context, "token"), cost::cache_bytes_of_token(step.model));
  fmt::print(
      "| mesh | ms a token | matrices | cache | exchange | messages of tp | cache GiB | GiB | "
      "longest context |\n|---|---|---|---|---|---|---|---|---|\n");
  for (std::size_t m = 0; m < std::min(top, meshes.size()); ++m) {
    const tune::DecodeMesh& one = meshes[m];
    fmt::print("| {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.2f} | {:.2f} | {} |\n",
               to_string(one), 1e3 * one.time.total(), 1e3 * one.time.matrices,
               1e3 * one.time.cache, 1e3 * one.time.exchange, 1e3 * one.time.tensor_parallel,
               gib(one.memory.cache), gib(one.memory.total()), one.longest_context);
  }
}

void run(const AdviseFlags& flags, RecipeQuestion question_of) {
  const int top = parse_count("--top", flags.top);
  if (flags.step == "decode") return run_decode(flags, question_of, static_cast<std::size_t>(top));
  const tune::AdviceQuestion request = question(flags, question_of);
  const tune::Advice advice = tune::advise(request);
  if (flags.json) {
    fmt::print("{}\n", to_json(advice));
    return;
  }
  print_advice(request, advice, static_cast<std::size_t>(top));
  if (flags.methods) print_methods(request);
}

}  // namespace

bool is_recipe(std::string_view model) {
  return model.ends_with(".toml");
}

void add_advise(CLI::App& app, int& exit_code) {
  add_advise_with(app, exit_code, nullptr);
}

void add_advise_with(CLI::App& app, int& exit_code, RecipeQuestion question_of) {
  CLI::App* verb =
      app.add_subcommand("advise", "A mesh for a step of a model on a described cluster");
  auto flags = std::make_shared<AdviseFlags>();
  verb->add_option("MODEL", flags->model,
                   "A known model such as llama3-8b, layers=L,hidden=E,heads=H,ffn=F,vocab=V,\n"
                   "or a recipe.toml, whose model counts its own cost; a recipe comes first")
      ->required()
      ->check(not_empty());
  verb->add_option("CLUSTER", flags->cluster, "PRESET, PRESET:nodes=N, or a .toml file")
      ->required()
      ->check(not_empty());
  verb->add_option("--seq", flags->seq, "Tokens of a sequence")->required()->check(not_empty());
  verb->add_option("--batch", flags->batch, "Sequences in a step [1]")->check(not_empty());
  verb->add_option("--devices", flags->devices, "Devices to use [all of the cluster]")
      ->check(not_empty());
  verb->add_option("--mask", flags->mask,
                   "As of `armillary plan` [the recipe's; causal; full for dit]")
      ->check(not_empty());
  verb->add_option(
          "--step", flags->step,
          "train, prefill, decode: a token behind --seq, or dit: one denoising step [train]")
      ->check(not_empty());
  verb->add_option("--text-tokens", flags->text_tokens,
                   "Tokens of text for cross-attention, with --step dit [none]")
      ->check(not_empty());
  verb->add_option("--set", flags->settings, "SECTION.KEY=VALUE of the recipe; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(not_empty());
  verb->add_option("--top", flags->top, "Rows of the table [10]")->check(not_empty());
  CLI::Option* const json =
      verb->add_flag("--json", flags->json, "All meshes that fit as one JSON object");
  verb->add_flag("--methods", flags->methods,
                 "Also USP's Table 2: what each way to divide a layer sends and holds")
      ->excludes(json);
  verb->footer(
      "Examples:\n"
      "  armillary advise llama3-8b c5 --seq 65536 --batch 2\n"
      "  armillary advise llama2-7b c1 --seq 524288 --methods\n"
      "  armillary advise llama3-8b c5 --seq 1048576 --step prefill\n"
      "  armillary advise llama3-8b c5 --seq 1048576 --step decode\n"
      "  armillary advise layers=12,hidden=768,heads=12,ffn=3072,vocab=50257,gated=false c6 --seq "
      "131072\n"
      "  armillary advise recipes/llama.toml c6 --seq 131072 --set "
      "training.mixed_precision_param=bfloat16");
  verb->callback([flags, &exit_code, question_of] {
    run(*flags, question_of);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
