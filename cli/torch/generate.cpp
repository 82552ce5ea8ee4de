// The verb `generate`: continues a prompt with a model that is there, over ranks. Ranks are threads
// that share the weights, or this process is one rank of many; rank 0 alone prints: the text to
// standard output, progress and times to standard error.
#include "armillary/serve/generate.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/mesh.h"
#include "armillary/comm/together.h"
#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/model/registry.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/cost/inference.h"
#include "armillary/predict/sim/device_dtype.h"
#include "armillary/predict/tune/automatic.h"
#include "armillary/runtime/dtypes.h"
#include "armillary/serve/model_weights.h"
#include "armillary/serve/token_text.h"
#include "armillary/serve/windows.h"
#include "armillary/text/tokenizer/load_tokenizer.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/tensor_parallel_over_ranks.h"
#include "cli/inference_text.h"
#include "cli/stop_signals.h"
#include "cli/torch/engine.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kGenerateExamples = R"(
Examples:
  armillary generate runs/llama --prompt-file prompt.txt
  armillary generate smollm.gguf --prompt-file long.txt --ranks 4 --chunk 8192
  armillary generate llama/ --prompt-file prompt.txt --ranks 4 --tp 2 --temperature 0.8 --top-p 0.95 --seed 7
  armillary launch -n 4 -- generate llama/ --prompt-file long.txt --ranks 4      4 processes
  armillary generate llama/ --prompt-file long.txt --ranks 128 --tp 8 --dtype bf16 --dry-run --cluster c1:nodes=16

Each rank keeps its part of the keys and values of what was read. The text is the same on any number of ranks, with any
layout, strategy and chunk, up to rounding. Models that were trained on bytes continue bytes. SIGTERM or Ctrl-C ends
the text.
Exit code: 0 done or stopped by a signal, 1 the run failed, 2 bad input.)";

struct GenerateArguments {
  std::string model;
  std::string prompt_file;
  std::string tokenizer;
  int ranks = 1;
  int tp = 1;
  serve::GenerateOptions options;
  std::int64_t chunk = 0;
  std::int64_t page = 16;
  std::string layout = "zigzag";
  std::string strategy = "ring";
  std::string dtype = "fp32";
  bool json = false;
  bool dry_run = false;
  std::string cluster;  ///< That of a dry run.
  launch::EngineFlags engine;

  MeshShape mesh() const { return {.cp = ranks / tp, .tp = tp}; }
};

/// The text of the prompt.
std::string read_prompt(const std::string& path) {
  std::string text =
      read_input({.where = "generate", .required = "a file with the text to continue"}, path);
  if (text.empty()) {
    fail<InvalidArgument>("generate: the prompt {} is empty; at least one byte is required",
                          excerpt(path));
  }
  return text;
}

at::ScalarType dtype_of(const std::string& name) {
  constexpr std::array<std::string_view, 2> kDtypes{"fp32", "bf16"};
  return parse_choice("generate: --dtype", name, kDtypes) == 0 ? at::kFloat : at::kBFloat16;
}

void require_positive(std::string_view flag, std::int64_t value) {
  if (value >= 1) return;
  fail<InvalidArgument>("generate: {} {} given; at least 1 is required", flag, value);
}

/// A dry run prices one pass over the prompt, by a strategy that is named.
void check_dry_run(const GenerateArguments& arguments) {
  if (!arguments.dry_run) {
    if (arguments.cluster.empty()) return;
    fail<InvalidArgument>("generate: --cluster {} given; it is of --dry-run, which is required",
                          excerpt(arguments.cluster));
  }
  if (arguments.cluster.empty()) {
    fail<InvalidArgument>(
        "generate: --dry-run given; --cluster with a preset (`armillary simulate --clusters`) or a "
        ".toml file is required");
  }
  if (arguments.chunk != 0) {
    fail<InvalidArgument>(
        "generate: --chunk {} given with --dry-run, whose prompt is read in one pass; none, or 0, "
        "is required",
        arguments.chunk);
  }
  if (!tune::is_automatic(arguments.strategy)) return;
  fail<InvalidArgument>(
      "generate: --strategy {} given with --dry-run; one by name is required; "
      "nearest: ring",
      arguments.strategy);
}

void check_arguments(const GenerateArguments& arguments) {
  require_positive("--ranks", arguments.ranks);
  require_positive("--tp", arguments.tp);
  require_positive("--page", arguments.page);
  require_positive("--tokens", arguments.options.tokens);
  if (arguments.ranks % arguments.tp != 0) {
    fail<InvalidArgument>("generate: --tp {} of --ranks {}; a divisor is required; nearest: {}",
                          arguments.tp, arguments.ranks,
                          nearest_divisor(arguments.ranks, arguments.tp));
  }
  check_dry_run(arguments);
  check_sampling(arguments.options.sampling);
  dtype_of(arguments.dtype);
  plan::parse_layout(arguments.layout);
  if (!tune::is_automatic(arguments.strategy)) plan::parse_strategy(arguments.strategy);
}

/// The words of a model: of the tokenizer that was given, or its own, or bytes.
serve::TokenText words_of(const GenerateArguments& arguments, const serve::ModelFile& file) {
  if (!arguments.tokenizer.empty()) {
    return serve::TokenText(std::make_shared<const tokenizer::Tokenizer>(
        tokenizer::load_tokenizer(arguments.tokenizer)));
  }
  if (std::optional<serve::TokenText> own = serve::words_of(file)) return *std::move(own);
  fail<InvalidArgument>(
      "generate: {} has {} words and no tokenizer.json; --tokenizer with tokenizer.json, a folder "
      "with one or a GGUF file is required, or {} words, bytes and a separator",
      excerpt(arguments.model), file.options().vocab_size, train::kVocabSize);
}

/// A prompt, and what is needed to continue it.
struct GenerateInput {
  serve::ModelFile file;
  serve::TokenText words;
  std::vector<std::int64_t> prompt;
  std::vector<std::int64_t> ends;

  std::int64_t most_tokens(const GenerateArguments& arguments) const {
    return static_cast<std::int64_t>(prompt.size()) + arguments.options.tokens;
  }
};

GenerateInput input_of(const GenerateArguments& arguments) {
  const std::string text = read_prompt(arguments.prompt_file);
  GenerateInput input{
      .file = serve::ModelFile("generate", arguments.model), .words = {}, .prompt = {}, .ends = {}};
  input.words = words_of(arguments, input.file);
  input.prompt = input.words.tokens(text);
  if (input.prompt.empty()) {
    fail<InvalidArgument>("generate: the prompt {} has no tokens; at least one is required",
                          excerpt(arguments.prompt_file));
  }
  input.ends = input.words.ends();
  input.ends.insert(input.ends.end(), input.file.ends().begin(), input.file.ends().end());
  serve::check_length("generate", input.file.options(),
                      static_cast<std::int64_t>(input.prompt.size()), input.most_tokens(arguments));
  return input;
}

/// Weights of ranks that are threads, read once for each index along tp.
class SharedWeights {
 public:
  SharedWeights(const serve::ModelFile& file, int tp_ranks, at::ScalarType dtype)
      : file_(file), dtype_(dtype), by_index_(static_cast<std::size_t>(tp_ranks)) {}

  std::shared_ptr<const serve::ModelWeights> of(int tp_index) {
    const std::lock_guard lock(mutex_);
    auto& weights = by_index_[static_cast<std::size_t>(tp_index)];
    if (!weights) {
      weights = std::make_shared<const serve::ModelWeights>(file_.weights(
          {.tp_index = tp_index, .tp_ranks = static_cast<int>(by_index_.size()), .dtype = dtype_}));
    }
    return weights;
  }

 private:
  const serve::ModelFile& file_;
  at::ScalarType dtype_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const serve::ModelWeights>> by_index_;
};

/// Pages of a rank for a prompt and its continuation: equal parts, and for each pass that is spread
/// what a rank may have above them, a stripe or a page.
std::int64_t pages_of_rank(const GenerateArguments& arguments, const plan::Layout& layout,
                           std::int64_t prompt) {
  const int cp = arguments.mesh().cp;
  const bool are_spread = arguments.chunk == 0 || arguments.chunk >= arguments.page * cp;
  const std::int64_t chunks = arguments.chunk > 0 ? ceil_div(prompt, arguments.chunk) : 1;
  const std::int64_t passes = are_spread && cp > 1 ? chunks : 0;
  const std::int64_t stripe = layout.kind == plan::LayoutKind::Striped ? layout.stripe : 1;
  const std::int64_t above = std::min(stripe, arguments.chunk > 0 ? arguments.chunk : prompt) + 1;
  const std::int64_t tokens =
      ceil_div(prompt + arguments.options.tokens, cp) + passes * above + 2 * arguments.page;
  return ceil_div(tokens, arguments.page) + 1;
}

void print_continuation(const GenerateArguments& arguments, const GenerateInput& input,
                        const serve::Continuations& result, std::int64_t cache_bytes) {
  const std::vector<std::int64_t>& tokens = result.tokens.front();
  const std::size_t prompt = input.prompt.size();
  if (arguments.json) {
    const nlohmann::json line{{"tokens", tokens},
                              {"text", input.words.text_behind(input.prompt, tokens)},
                              {"prompt_tokens", prompt},
                              {"prefill_s", result.prefill_s},
                              {"decode_s", result.decode_s},
                              {"cache_bytes", cache_bytes}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  if (result.prefill_s == 0) return;  // Stopped before the first token.
  const double prefill_rate = static_cast<double>(prompt) / std::max(result.prefill_s, 1e-9);
  const double decode_rate = static_cast<double>(result.steps) / std::max(result.decode_s, 1e-9);
  fmt::print(stderr,
             "generate: {} read in {:.2f} s, {:.0f} tokens/s; {} decoded in {:.2f} s, {:.1f} "
             "tokens/s; the cache of a rank has {}\n",
             count_of(prompt, "token"), result.prefill_s, prefill_rate,
             count_of(result.steps, "token"), result.decode_s, decode_rate,
             count_of(cache_bytes, "byte"));
}

void print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// The options of generate() on one rank, with what it asks and tells while it runs.
serve::GenerateOptions watched_options(comm::Communicator& world,
                                       const GenerateArguments& arguments,
                                       const GenerateInput& input, serve::GrowingText& text) {
  const bool prints = world.rank() == 0 && !arguments.json;
  serve::GenerateOptions options = arguments.options;
  options.ends = input.ends;
  options.stops = &StopSignals::stop_requested;
  // A signal may reach ranks at different times; rank 0 decides for all.
  options.progress = [&world, prints, chunk = arguments.chunk](std::int64_t tokens,
                                                               std::int64_t of) {
    if (prints && chunk > 0) {
      fmt::print(stderr, "generate: {} of {} read\n", tokens, count_of(of, "token"));
    }
    std::int64_t stops = StopSignals::stop_requested() ? 1 : 0;
    comm::broadcast(world, comm::array(std::span(&stops, 1)), 0);
    return stops == 0;
  };
  if (prints) {
    options.on_token = [&text](std::size_t, std::int64_t token) { print_text(text.add(token)); };
  }
  return options;
}

/// One rank of the run.
void run_rank(comm::Communicator& world, const GenerateArguments& arguments,
              const GenerateInput& input, SharedWeights& shared) {
  const comm::Mesh mesh(world, arguments.mesh());
  std::shared_ptr<const serve::ModelWeights> weights;
  comm::run_together(world, [&] { weights = shared.of(mesh.index(MeshAxis::Tp)); });
  const std::unique_ptr<model::Model> model = model::make_model(
      input.file.options(),
      {.dtype = dtype_of(arguments.dtype), .seq_len = input.most_tokens(arguments)});
  const plan::Layout layout = plan::parse_layout(arguments.layout);
  const auto prompt = static_cast<std::int64_t>(input.prompt.size());
  comm::Communicator& cp = mesh.along(MeshAxis::Cp);
  const auto tensor_parallel =
      arguments.tp > 1 ? train::tensor_parallel_over_ranks(mesh.along(MeshAxis::Tp)) : nullptr;
  serve::Sessions sessions(
      cp, *model, [&](int unit) { return weights->of_unit(unit); },
      {.layout = layout,
       .strategy = arguments.strategy,
       .chunk = arguments.chunk,
       .cache = {.page = arguments.page, .pages = pages_of_rank(arguments, layout, prompt)},
       .windows = serve::windows_of(input.file.options()),
       .tensor_parallel = tensor_parallel});
  serve::GrowingText text(input.words, input.prompt);
  const serve::Continuations result = generate(world, sessions, std::span(&input.prompt, 1),
                                               watched_options(world, arguments, input, text));
  if (world.rank() != 0) return;
  if (!arguments.json) print_text(text.rest() + "\n");
  if (result.was_stopped) fmt::print(stderr, "generate: stopped by {}\n", StopSignals::name());
  print_continuation(arguments, input, result, sessions.cache().bytes());
}

/// Costs of a prompt know no window: with a shorter one attention and cache would be too much.
void check_window(const GenerateInput& input) {
  const auto prompt = static_cast<std::int64_t>(input.prompt.size());
  for (const std::int64_t window : serve::windows_of(input.file.options())) {
    if (prompt <= window) continue;
    fail<InvalidArgument>(
        "generate: --dry-run with {} for a model with a window of {}; at most {} are required",
        count_of(prompt, "token"), window, window);
  }
}

/// Prints what the prompt takes on the cluster of a dry run. Reads no weights.
void print_estimate(const GenerateArguments& arguments, const GenerateInput& input) {
  check_window(input);
  const at::ScalarType dtype = dtype_of(arguments.dtype);
  const plan::Dtype plan_dtype = runtime::plan_dtype(dtype, "--dtype");
  sim::Cluster cluster = sim::load_cluster(arguments.cluster);
  sim::DeviceInDtype device = sim::device_in(cluster.device, plan_dtype);
  cluster.device = std::move(device.device);
  const cost::Inference inference{
      .model = model::model_cost(
          input.file.options(),
          {.dtype = dtype, .native_bf16 = true, .seq_len = input.most_tokens(arguments)}),
      .prompt = static_cast<std::int64_t>(input.prompt.size()),
      .cp = arguments.mesh().cp,
      .tp = arguments.tp,
      .strategy = plan::parse_strategy(arguments.strategy),
      .layout = plan::parse_layout(arguments.layout),
      .dtype = plan_dtype,
      .parameter_bytes = static_cast<double>(c10::elementSize(dtype))};
  const cost::InferenceCost cost = inference_cost(inference, cluster);
  check_inference_fits("generate", inference, cost, cluster);
  if (arguments.json) {
    fmt::print("{}\n", to_json(inference, cost));
    return;
  }
  print_inference(arguments.model, inference, cost, cluster);
  if (!device.assumed.empty()) fmt::print("  assumed             {}\n", device.assumed);
}

void run_generate(const GenerateArguments& arguments) {
  const StopSignals stop_signals;
  check_arguments(arguments);
  if (arguments.dry_run) return print_estimate(arguments, input_of(arguments));
  const launch::EngineChoice choice = choose_engine(
      arguments.engine, {arguments.ranks, fmt::format("--ranks {}", arguments.ranks)});
  const GenerateInput input = input_of(arguments);
  SharedWeights shared(input.file, arguments.tp, dtype_of(arguments.dtype));
  constexpr double kTimeoutS = 600;  // A rank may read a chunk for long.
  const int threads =
      static_cast<int>(std::thread::hardware_concurrency()) / choice.local_world(arguments.ranks);
  run_ranks_on(choice, arguments.ranks, kTimeoutS, [&](comm::Communicator& world) {
    at::set_num_threads(std::max(1, threads));  // For this rank's thread.
    run_rank(world, arguments, input, shared);
  });
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* verb = app.add_subcommand("generate", kGenerateDescription);
  serve::Sampling& sampling = arguments->options.sampling;
  verb->add_option("model", arguments->model,
                   "Folder of a run (its newest checkpoint), a checkpoint, a folder of `armillary "
                   "export` or of Hugging Face, or a .gguf file")
      ->required();
  verb->add_option("--prompt-file", arguments->prompt_file, "The text to continue")->required();
  verb->add_option("--tokenizer", arguments->tokenizer,
                   "tokenizer.json, a folder with one, or a GGUF file; default the model's own");
  verb->add_option("--ranks", arguments->ranks, "Ranks; default 1");
  verb->add_option("--tp", arguments->tp, "Of them share the matrices of each layer; default 1");
  verb->add_option("--tokens", arguments->options.tokens, "Most new tokens; default 64");
  verb->add_option("--temperature", sampling.temperature, "0, the default: the most likely token");
  verb->add_option("--top-k", sampling.top_k, "Draw among so many tokens; default 0: all");
  verb->add_option("--top-p", sampling.top_p, "Draw among tokens of this probability; default 1");
  verb->add_option("--seed", sampling.seed, "Of the draws; default 0");
  verb->add_option("--chunk", arguments->chunk,
                   "Most tokens of the prompt read at once; default 0: all");
  verb->add_option("--layout", arguments->layout,
                   "Of a chunk over the ranks: contiguous, zigzag, striped[:W]; default zigzag");
  verb->add_option("--strategy", arguments->strategy, "Of attention; default ring");
  verb->add_option("--dtype", arguments->dtype,
                   "Matrices, activations, keys and values: fp32 or bf16; default fp32");
  verb->add_option("--page", arguments->page, "Tokens of a page of the cache; default 16");
  verb->add_flag("--json", arguments->json, "One JSON object");
  verb->add_flag(
      "--dry-run", arguments->dry_run,
      "Print time to first token, time per token and memory on --cluster; read no weights");
  verb->add_option("--cluster", arguments->cluster, "PRESET, PRESET:nodes=N, or a .toml file");
  add_engine_flags(*verb, arguments->engine);
  verb->footer(kGenerateExamples);
  verb->callback([arguments, &exit_code] {
    run_generate(*arguments);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
