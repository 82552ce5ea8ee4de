// The verb `bench`: how fast parts are on this machine, each checked before it is timed.
#include <fmt/format.h>

#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/bench/report.h"
#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// As given on the command line; each bench reads some of it.
struct BenchFlags {
  std::string dtype = "fp32";
  std::string head_dim = "128";
  std::string tokens;
  std::string heads = "8";
  std::string kv_heads;
  std::string mask = "causal";
  std::string layout;
  std::string world;
  std::string pass = "forward";
  std::string threads = "1";
  std::vector<std::string> strategies;
  std::string seconds = "2";
  bool sdpa = false;
  bool no_kernels = false;
  bool json = false;
  bool on_request = false;
};

int kv_heads(const BenchFlags& flags) {
  return parse_count(flags.kv_heads.empty() ? "--heads" : "--kv-heads",
                     flags.kv_heads.empty() ? flags.heads : flags.kv_heads);
}

bench::KernelCase kernel_case(const BenchFlags& flags) {
  constexpr std::array<std::string_view, 2> kPasses{"forward", "backward"};
  const bool forward = parse_choice("--pass", flags.pass, kPasses) == 0;
  return {.dtype = plan::parse_dtype(flags.dtype),
          .head_dim = parse_count("--head-dim", flags.head_dim),
          .tokens = parse_count("--tokens", flags.tokens),
          .heads = parse_count("--heads", flags.heads),
          .kv_heads = kv_heads(flags),
          .mask = flags.mask,
          .layout = flags.layout,
          .world = parse_count("--world", flags.world),
          .pass = forward ? plan::Pass::Forward : plan::Pass::Backward,
          .threads = parse_count("--threads", flags.threads),
          .sdpa = flags.sdpa};
}

bench::LayerCase layer_case(const BenchFlags& flags) {
  bench::LayerCase given{.dtype = plan::parse_dtype(flags.dtype),
                         .head_dim = parse_count("--head-dim", flags.head_dim),
                         .tokens = parse_count("--tokens", flags.tokens),
                         .heads = parse_count("--heads", flags.heads),
                         .kv_heads = kv_heads(flags),
                         .mask = flags.mask,
                         .layout = flags.layout,
                         .world = parse_count("--world", flags.world),
                         .kernels = !flags.no_kernels};
  if (!flags.strategies.empty()) given.strategies = flags.strategies;
  return given;
}

bench::MergeCase merge_case(const BenchFlags& flags) {
  return {.tokens = parse_count("--tokens", flags.tokens),
          .heads = parse_count("--heads", flags.heads),
          .head_dim = parse_count("--head-dim", flags.head_dim),
          .threads = parse_count("--threads", flags.threads)};
}

bench::CoresCase cores_case(const BenchFlags& /*flags*/) {
  return {};
}

/// `bench kernel: isa avx2, dtype fp32, ..`, numbers to four digits.
std::string as_text(const nlohmann::ordered_json& line) {
  std::string text;
  for (const auto& [key, value] : line.items()) {
    const std::string shown = value.is_number_float() ? fmt::format("{:.4g}", value.get<double>())
                              : value.is_string()     ? value.get<std::string>()
                                                      : value.dump();
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, shown);
  }
  return text;
}

/// Runs one side for every line of `in` that names it, so that another program can make it take
/// turns with sides of other programs.
void serve(const nlohmann::ordered_json& facts, const std::vector<bench::Side>& sides,
           std::istream& in) {
  nlohmann::ordered_json ready = facts;
  std::vector<std::string> names;
  names.reserve(sides.size());
  for (const bench::Side& side : sides) names.push_back(side.name);
  const std::vector<std::string_view> choices(names.begin(), names.end());
  ready["sides"] = names;
  fmt::print("{}\n", ready.dump());
  std::fflush(stdout);
  for (std::string name; std::getline(in, name);) {
    const std::size_t side = parse_choice("side", name, choices);
    fmt::print("{}\n", nlohmann::ordered_json{{"side", name}, {"value", sides[side].run()}}.dump());
    std::fflush(stdout);
  }
}

template <class Rate, class Case>
void measure(const Case& given, const BenchFlags& flags) {
  const double seconds = static_cast<double>(parse_integer("--seconds", flags.seconds, {0, 3600}));
  Rate rate(given);
  const std::vector<bench::Side> sides = rate.sides();
  if (flags.on_request) return serve(facts_json(given, rate), sides, std::cin);
  const bench::Rounds rounds = bench::take_turns(sides, seconds);
  for (const nlohmann::ordered_json& line : report(given, rate, rounds)) {
    fmt::print("{}\n", flags.json ? line.dump() : as_text(line));
  }
  const std::string left_out = bench::left_out_text(rounds);
  if (!flags.json && !left_out.empty()) fmt::print("{}\n", left_out);
}

/// One of the benches, with the flags that it shares with others.
struct Bench {
  CLI::App* app;
  std::shared_ptr<BenchFlags> flags = std::make_shared<BenchFlags>();

  void add(const char* name, std::string& value, const char* help) const {
    app->add_option(name, value, help)->option_text(" ")->check(not_empty());
  }
  void add_shape(const char* tokens_help) const {
    add("--tokens", flags->tokens, tokens_help);
    add("--heads", flags->heads, "Query heads [8]");
    add("--head-dim", flags->head_dim, "Dim of a head, 1 to 256 [128]");
  }
  void add_problem() const {
    add("--dtype", flags->dtype, "fp32, bf16 or fp16 [fp32]");
    add("--kv-heads", flags->kv_heads, "KV heads; must divide the query heads [as many]");
    add("--mask", flags->mask, "As for `armillary plan`, over tokens x world [causal]");
  }
  void add_output() const {
    add("--seconds", flags->seconds, "How long to measure; at least 3 rounds [2]");
    app->add_flag("--json", flags->json, "One JSON object a line");
    app->add_flag("--on-request", flags->on_request,
                  "Run what a line of standard input names, and answer with its value");
  }
  template <class Rate, class Case>
  void measures(Case (*case_of)(const BenchFlags&), int& exit_code) const {
    app->callback([given = flags, case_of, &exit_code] {
      measure<Rate>(case_of(*given), *given);
      exit_code = kDone;
    });
  }
};

void add_kernel(CLI::App& verb, int& exit_code) {
  const Bench bench{verb.add_subcommand("kernel", "Attention of one block on one rank")};
  bench.flags->tokens = "4096";
  bench.flags->layout = "contiguous";
  bench.flags->world = "1";
  bench.add_shape("Rows of Q, K and V [4096]");
  bench.add_problem();
  bench.add("--layout", bench.flags->layout,
            "Rows are the tokens of rank 0 in this layout [contiguous]");
  bench.add("--world", bench.flags->world, "Ranks of that layout [1]");
  bench.add("--pass", bench.flags->pass, "forward or backward [forward]");
  bench.add("--threads", bench.flags->threads, "Threads of the rank [1]");
  bench.app->add_flag("--sdpa", bench.flags->sdpa,
                      "PyTorch's flash kernel beside it (full and causal)");
  bench.add_output();
  bench.app->footer(
      "Rates are medians of rounds in which the peak, ours and PyTorch's flash kernel take turns;\n"
      "ARMILLARY_ISA=amx|avx512_bf16|avx512|avx2|portable forces an instruction set (armillary "
      "doctor).\n"
      "\nExamples:\n"
      "  armillary bench kernel --dtype bf16 --tokens 4096 --mask causal --pass backward --sdpa\n"
      "  armillary bench kernel --mask window:left=1023,right=0 --tokens 16384 --json\n"
      "  armillary bench kernel --layout zigzag --world 4 --tokens 4096\n");
  bench.measures<bench::KernelRate>(kernel_case, exit_code);
}

void add_layer(CLI::App& verb, int& exit_code) {
  const Bench bench{verb.add_subcommand("layer", "One attention layer, spread over ranks")};
  bench.flags->tokens = "1024";
  bench.flags->layout = "zigzag";
  bench.flags->world = "2";
  bench.add_shape("Tokens of a rank [1024]");
  bench.add_problem();
  bench.add("--layout", bench.flags->layout, "Which tokens live on which rank [zigzag]");
  bench.add("--world", bench.flags->world, "Ranks, a thread each [2]");
  bench.app
      ->add_option("--strategy", bench.flags->strategies,
                   "May be given several times: they take turns [ring]")
      ->option_text(" ")
      ->expected(1)
      ->take_all();
  bench.app->add_flag("--no-kernels", bench.flags->no_kernels,
                      "Leave out what the kernel calls take alone");
  bench.add_output();
  bench.app->footer(
      "Forward, and forward with backward. Efficiency is one rank's time for the whole sequence, "
      "over\nthe ranks, over theirs; `busy` is against one rank while all cores work.\n"
      "\nExamples:\n"
      "  armillary bench layer --tokens 2048 --strategy ring --strategy usp:u=2 --json\n"
      "  armillary bench layer --tokens 16 --heads 1 --head-dim 8\n");
  bench.measures<bench::LayerRate>(layer_case, exit_code);
}

void add_merge(CLI::App& verb, int& exit_code) {
  const Bench bench{verb.add_subcommand("merge", "Merging and adding, beside the speed of memory")};
  bench.flags->tokens = "16384";
  bench.add_shape("Rows of the partials [16384]");
  bench.add("--threads", bench.flags->threads, "Threads of the rank [1]");
  bench.add_output();
  bench.app->footer(
      "Of memory: over the faster of a plain loop of the same traffic and memcpy, in bytes read "
      "and written.\n"
      "\nExamples:\n"
      "  armillary bench merge --threads 2\n");
  bench.measures<bench::MergeRate>(merge_case, exit_code);
}

void add_cores(CLI::App& verb, int& exit_code) {
  const Bench bench{
      verb.add_subcommand("cores", "Two threads beside one: whether a second core is there")};
  bench.add_output();
  bench.app->footer(
      "The rate of two independent peaks over that of one: below 1.8 another has the second core,\n"
      "or it is half of the first. Other benches of several threads ask it in every round, and "
      "leave\n"
      "such rounds out.\n"
      "\nExamples:\n"
      "  armillary bench cores\n");
  bench.measures<bench::CoresRate>(cores_case, exit_code);
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("bench", kBenchDescription);
  add_kernel(*verb, exit_code);
  add_layer(*verb, exit_code);
  add_merge(*verb, exit_code);
  add_cores(*verb, exit_code);
  verb->allow_extras();  // to say which there are
  verb->callback([verb] {
    if (!verb->get_subcommands().empty()) return;
    std::vector<std::string> names;
    for (const CLI::App* bench : verb->get_subcommands({})) names.push_back(bench->get_name());
    if (verb->remaining().empty()) {
      fail<InvalidArgument>("bench: what to measure is not named; {} is required",
                            list_names(names));
    }
    const std::vector<std::string_view> choices(names.begin(), names.end());
    parse_choice("bench", verb->remaining().front(), choices);
  });
  verb->footer("`armillary bench kernel --help` has examples. All questions: ./dev bench --help");
}

}  // namespace armillary::cli
