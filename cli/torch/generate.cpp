// The verb `generate`: continues a prompt with a model that `train` has trained, over ranks. Ranks
// are threads that share the weights, or this process is one rank of many; rank 0 alone prints: the
// text to standard output, progress and times to standard error.
#include "armillary/serve/generate.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/input_file.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"
#include "armillary/model/registry.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/predict/tune/automatic.h"
#include "armillary/serve/model_weights.h"
#include "armillary/train/packed_text.h"
#include "cli/stop_signals.h"
#include "cli/torch/engine.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

constexpr const char* kGenerateExamples = R"(
Examples:
  armillary generate runs/llama --prompt-file prompt.txt
  armillary generate runs/llama --prompt-file long.txt --ranks 4 --chunk 8192 --layout zigzag
  armillary generate runs/llama --prompt-file prompt.txt --temperature 0.8 --top-p 0.95 --seed 7
  armillary launch -n 4 -- generate runs/llama --prompt-file long.txt --ranks 4      4 processes

Each rank keeps its part of the keys and values of what was read. The text is the same on any number of ranks, with any
layout, strategy and chunk, up to rounding. A token is a byte. SIGTERM or Ctrl-C ends the reading of the prompt.
Exit code: 0 done or stopped by a signal, 1 the run failed, 2 bad input.)";

struct GenerateArguments {
  std::string model;
  std::string prompt_file;
  int ranks = 1;
  serve::GenerateOptions options;
  std::int64_t chunk = 0;
  std::int64_t page = 16;
  std::string layout = "zigzag";
  std::string strategy = "ring";
  std::string dtype = "fp32";
  bool json = false;
  launch::EngineFlags engine;
};

/// The bytes of the prompt as tokens.
std::vector<std::int64_t> read_prompt(const std::string& path) {
  const std::string text =
      read_input({.where = "generate", .required = "a file with the text to continue"}, path);
  if (text.empty()) {
    fail<InvalidArgument>("generate: the prompt {} is empty; at least one byte is required",
                          excerpt(path));
  }
  std::vector<std::int64_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

at::ScalarType dtype_of(const std::string& name) {
  constexpr std::array<std::string_view, 2> kDtypes{"fp32", "bf16"};
  return parse_choice("generate: --dtype", name, kDtypes) == 0 ? at::kFloat : at::kBFloat16;
}

void check_arguments(const GenerateArguments& arguments) {
  if (arguments.ranks < 1) {
    fail<InvalidArgument>("generate: --ranks {} given; at least 1 is required", arguments.ranks);
  }
  if (arguments.options.tokens < 1) {
    fail<InvalidArgument>("generate: --tokens {} given; at least 1 is required",
                          arguments.options.tokens);
  }
  check_sampling(arguments.options.sampling);
  dtype_of(arguments.dtype);
  plan::parse_layout(arguments.layout);
  if (!tune::is_automatic(arguments.strategy)) plan::parse_strategy(arguments.strategy);
}

/// Pages of a rank for a prompt and its continuation: equal parts, and for each pass that is spread
/// what a rank may have above them, a stripe or a page.
std::int64_t pages_of_rank(const GenerateArguments& arguments, const plan::Layout& layout,
                           std::int64_t prompt) {
  const bool are_spread =
      arguments.chunk == 0 || arguments.chunk >= arguments.page * arguments.ranks;
  const std::int64_t chunks = arguments.chunk > 0 ? ceil_div(prompt, arguments.chunk) : 1;
  const std::int64_t passes = are_spread ? chunks : 0;
  const std::int64_t above = std::max(layout.stripe, arguments.page) + 1;
  const std::int64_t tokens =
      ceil_div(prompt + arguments.options.tokens, arguments.ranks) + (passes + 1) * above;
  return ceil_div(tokens, arguments.page) + 1;
}

std::string text_of_tokens(const std::vector<std::int64_t>& tokens) {
  std::string text;
  for (const std::int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

void print_result(const GenerateArguments& arguments, std::size_t prompt,
                  const serve::Continuations& result, std::int64_t cache_bytes) {
  const std::vector<std::int64_t>& tokens = result.tokens.front();
  const double prefill_rate = static_cast<double>(prompt) / std::max(result.prefill_s, 1e-9);
  const double decode_rate = static_cast<double>(result.steps) / std::max(result.decode_s, 1e-9);
  if (arguments.json) {
    const nlohmann::json line{{"tokens", tokens},
                              {"text", text_of_tokens(tokens)},
                              {"prompt_tokens", prompt},
                              {"prefill_s", result.prefill_s},
                              {"decode_s", result.decode_s},
                              {"cache_bytes", cache_bytes}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("\n");
  fmt::print(stderr,
             "generate: {} read in {:.2f} s, {:.0f} tokens/s; {} decoded in {:.2f} s, {:.1f} "
             "tokens/s; the cache of a rank has {}\n",
             count_of(prompt, "token"), result.prefill_s, prefill_rate,
             count_of(result.steps, "token"), result.decode_s, decode_rate,
             count_of(cache_bytes, "byte"));
}

/// One rank of the run.
void run_rank(comm::Communicator& comm, const GenerateArguments& arguments,
              const serve::LoadedModel& loaded, const std::vector<std::int64_t>& prompt) {
  const std::unique_ptr<model::Model> model =
      model::make_model(loaded.options, {.dtype = dtype_of(arguments.dtype)});
  const plan::Layout layout = plan::parse_layout(arguments.layout);
  serve::Sessions sessions(
      comm, *model, [&](int unit) { return loaded.weights->of_unit(unit); },
      {.layout = layout,
       .strategy = arguments.strategy,
       .chunk = arguments.chunk,
       .cache = {
           .page = arguments.page,
           .pages = pages_of_rank(arguments, layout, static_cast<std::int64_t>(prompt.size()))}});
  const bool prints = comm.rank() == 0;
  serve::GenerateOptions options = arguments.options;
  options.end = train::kSeparator;
  // A signal may reach ranks at different times; rank 0 decides for all.
  options.progress = [&](std::int64_t tokens, std::int64_t of) {
    if (prints && arguments.chunk > 0 && !arguments.json) {
      fmt::print(stderr, "generate: {} of {} read\n", tokens, count_of(of, "token"));
    }
    std::int64_t stops = StopSignals::stop_requested() ? 1 : 0;
    comm::broadcast(comm, comm::array(std::span(&stops, 1)), 0);
    return stops == 0;
  };
  if (prints && !arguments.json) {
    options.on_token = [](std::size_t, std::int64_t token) {
      std::fputc(static_cast<int>(token), stdout);
      std::fflush(stdout);
    };
  }
  const serve::Continuations result = generate(comm, sessions, std::span(&prompt, 1), options);
  if (!prints) return;
  if (result.was_stopped) {
    fmt::print(stderr, "generate: stopped by {} before the prompt was read\n", StopSignals::name());
    return;
  }
  print_result(arguments, prompt.size(), result, sessions.cache().bytes());
}

void run_generate(const GenerateArguments& arguments) {
  const StopSignals stop_signals;
  check_arguments(arguments);
  const launch::EngineChoice choice = choose_engine(
      arguments.engine, {arguments.ranks, fmt::format("--ranks {}", arguments.ranks)});
  const std::vector<std::int64_t> prompt = read_prompt(arguments.prompt_file);
  const serve::LoadedModel loaded = serve::load_run("generate", arguments.model);
  if (loaded.options.vocab_size != train::kVocabSize) {
    fail<InvalidArgument>(
        "generate: a model of {} words given; {}, bytes and a separator, are required",
        loaded.options.vocab_size, train::kVocabSize);
  }
  constexpr double kTimeoutS = 600;  // A rank may read a chunk for long.
  const int threads =
      static_cast<int>(std::thread::hardware_concurrency()) / choice.local_world(arguments.ranks);
  run_ranks_on(choice, arguments.ranks, kTimeoutS, [&](comm::Communicator& comm) {
    at::set_num_threads(std::max(1, threads));  // For this rank's thread.
    run_rank(comm, arguments, loaded, prompt);
  });
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* verb = app.add_subcommand("generate", kGenerateDescription);
  serve::Sampling& sampling = arguments->options.sampling;
  verb->add_option("model", arguments->model,
                   "Folder of a run (its newest checkpoint), or a checkpoint")
      ->required();
  verb->add_option("--prompt-file", arguments->prompt_file, "The text to continue")->required();
  verb->add_option("--ranks", arguments->ranks, "Ranks; default 1");
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
                   "Activations, keys and values: fp32 or bf16; default fp32");
  verb->add_option("--page", arguments->page, "Tokens of a page of the cache; default 16");
  verb->add_flag("--json", arguments->json, "One JSON object");
  add_engine_flags(*verb, arguments->engine);
  verb->footer(kGenerateExamples);
  verb->callback([arguments, &exit_code] {
    run_generate(*arguments);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
