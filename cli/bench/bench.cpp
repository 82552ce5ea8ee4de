// The verb `bench`: measures parts of the program on this machine, each checked before it is timed.
// It has a verb of its own for each bench: kernel, layer, overlap, live, collectives, merge,
// cores; and turns, which measures only other programs.
//
// All benches work alike. Flags become a case, the case a rate with several sides (ours, the peak,
// alternatives), and the sides take turns for some seconds. With --against, other programs take
// turns with them (lab/bench/contender.h). With --on-request, this program is such a program
// itself: lines of standard input say which side runs next.
#include <fmt/format.h>

#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/host/launch/launch_folder.h"
#include "armillary/host/launch/process_place.h"
#include "armillary/lab/bench/contender.h"
#include "armillary/lab/bench/process_ranks.h"
#include "armillary/lab/bench/result_json.h"
#include "armillary/lab/calibrate/live_rate.h"
#include "cli/bench/turns_output.h"
#include "cli/problem_flags.h"
#include "cli/torch/engine.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// The flags of all benches as the user wrote them; each bench has and reads some of them.
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
  std::string least = "3";
  std::vector<std::string> against;
  std::string deadline = "600";
  bool sdpa = false;
  bool no_kernels = false;
  std::string flight;
  bool cores = false;
  bool json = false;
  bool on_request = false;
  std::string ranks_per_node = "1";
  std::string cluster;
  std::vector<std::string> bytes;
  bool step = false;
  std::string zero = "3";
  std::string layers = "8";
  std::string dim = "512";
  std::string link;
  launch::EngineFlags engine;
};

/// KV heads; as many as query heads if the flag was left out.
int kv_heads(const BenchFlags& flags) {
  return parse_count(flags.kv_heads.empty() ? "--heads" : "--kv-heads",
                     flags.kv_heads.empty() ? flags.heads : flags.kv_heads);
}

// The case of each bench. @throws InvalidArgument for flags that do not parse.

bench::KernelCase kernel_case(const BenchFlags& flags) {
  constexpr std::array<std::string_view, 2> kPasses{"forward", "backward"};
  // Values that the bench itself parses, such as the mask, stay texts.
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
  bench::LayerCase spec{.dtype = plan::parse_dtype(flags.dtype),
                        .head_dim = parse_count("--head-dim", flags.head_dim),
                        .tokens = parse_count("--tokens", flags.tokens),
                        .heads = parse_count("--heads", flags.heads),
                        .kv_heads = kv_heads(flags),
                        .mask = flags.mask,
                        .layout = flags.layout,
                        .world = parse_count("--world", flags.world),
                        .kernels = !flags.no_kernels,
                        .run_folder = flags.flight};
  if (!flags.strategies.empty()) spec.strategies = flags.strategies;
  return spec;
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

bench::TurnLimits turn_limits(const BenchFlags& flags) {
  return {.seconds = static_cast<double>(parse_integer("--seconds", flags.seconds, {0, 3600})),
          .least = parse_count("--least", flags.least)};
}

/// Seconds that another program has for each answer.
double deadline_s(const BenchFlags& flags) {
  return static_cast<double>(parse_count("--deadline", flags.deadline));
}

/// Takes turns with the sides of a rate and prints a line for each result, and with --against one
/// for all sides.
template <class Rate, class Case>
void measure_rate(const Case& spec, const Rate& rate, std::vector<bench::Side> sides,
                  const BenchFlags& flags) {
  if (flags.on_request) return serve(facts_json(spec, rate), sides, std::cin);
  // Other programs start one after the other; then all sides take turns.
  bench::Contenders others(flags.against, deadline_s(flags), launch::environment_without_place());
  others.add_sides(sides);
  const bench::TurnSummary turns = take_turns(sides, turn_limits(flags));
  for (const nlohmann::ordered_json& line : result_lines(spec, rate, turns)) {
    flags.json ? print_json(line) : fmt::print("{}\n", as_text(line));
  }
  if (!flags.against.empty()) print_turns(turns, others, flags.json);
  print_left_out(turns, flags.json);
}

/// Measures one case. Bad flags are refused before the rate, which checks its results, is made.
template <class Rate, class Case>
void measure(const Case& spec, const BenchFlags& flags) {
  turn_limits(flags);
  deadline_s(flags);
  Rate rate(spec);
  measure_rate(spec, rate, rate.sides(), flags);
}

bench::OverlapCase overlap_case(const BenchFlags& flags) {
  return {.layer = layer_case(flags),
          .ranks_per_node = parse_count("--ranks-per-node", flags.ranks_per_node)};
}

bench::StepOverlapCase step_overlap_case(const BenchFlags& flags) {
  return {.world = parse_count("--world", flags.world),
          .zero = parse_count("--zero", flags.zero),
          .layers = parse_count("--layers", flags.layers),
          .dim = parse_count("--dim", flags.dim),
          .heads = parse_count("--heads", flags.heads),
          .tokens = parse_count("--tokens", flags.tokens),
          .link_bytes_per_s = flags.link.empty() ? 0 : parse_count("--link", flags.link) * 1e6 / 8};
}

calibrate::LiveCase live_case(const BenchFlags& flags) {
  if (flags.cluster.empty()) {
    fail<InvalidArgument>(
        "--cluster: none given; the file of `armillary calibrate` for these ranks is required");
  }
  return {.layer = layer_case(flags), .cluster = sim::load_cluster(flags.cluster)};
}

bench::CollectivesCase collectives_case(const BenchFlags& flags) {
  bench::CollectivesCase spec{.world = parse_count("--world", flags.world)};
  if (flags.bytes.empty()) return spec;
  spec.bytes.clear();
  for (const std::string& bytes : flags.bytes) {
    spec.bytes.push_back(parse_integer("--bytes", bytes, {4, std::int64_t{1} << 32}));
  }
  return spec;
}

/// The part of a case that names its ranks.
bench::LayerCase& ranks_of(bench::LayerCase& spec) {
  return spec;
}
bench::CollectivesCase& ranks_of(bench::CollectivesCase& spec) {
  return spec;
}
bench::LayerCase& ranks_of(bench::OverlapCase& spec) {
  return spec.layer;
}
bench::StepOverlapCase& ranks_of(bench::StepOverlapCase& spec) {
  return spec;
}
bench::LayerCase& ranks_of(calibrate::LiveCase& spec) {
  return spec.layer;
}

/// The same for benches whose ranks may be processes: rank 0 measures and prints, the others run
/// what it calls.
template <class Rate, class Case>
void measure_on_ranks(Case spec, const BenchFlags& flags) {
  auto& ranks = ranks_of(spec);
  const launch::EngineChoice choice =
      choose_engine(flags.engine, {ranks.world, fmt::format("--world {}", ranks.world)});
  if (choice.engine == launch::Engine::Threads) return measure<Rate>(spec, flags);
  if (!flags.link.empty()) {
    fail<InvalidArgument>(
        "--link {} with ranks that meet by {}; ranks that are threads are required", flags.link,
        launch::name_of(choice.engine));
  }
  ranks.engine = launch::name_of(choice.engine);
  turn_limits(flags);
  run_ranks_on(choice, ranks.world, deadline_s(flags), [&](comm::Communicator& comm) {
    bench::Processes processes(comm);
    Rate rate(spec, [&](int world, int owner) { return processes.make_ranks(world, owner); });
    const std::vector<bench::Side> sides = rate.sides();
    if (comm.rank() != 0) return processes.follow(sides);
    measure_rate(spec, rate, processes.lead(sides), flags);
    processes.dismiss();
  });
}

/// Lets other programs take turns, without a side of this one except the cores.
void measure_others(const BenchFlags& flags) {
  const bench::TurnLimits limits = turn_limits(flags);
  if (flags.against.empty()) {
    fail<InvalidArgument>("turns: no program given; at least one --against COMMAND is required");
  }
  bench::Contenders others(flags.against, deadline_s(flags), launch::environment_without_place());
  std::vector<bench::Side> sides;
  others.add_sides(sides);
  // A side may take minutes: the cores are looked at before each, and the worst look counts.
  for (std::size_t i = 0; flags.cores && i < sides.size(); i += 2) {
    sides.insert(sides.begin() + static_cast<std::ptrdiff_t>(i), bench::cores_side());
  }
  const bench::TurnSummary turns = take_turns(sides, limits);
  print_turns(turns, others, flags.json);
  print_left_out(turns, flags.json);
}

/// Refuses several processes for a bench that runs no ranks: each would do all of it.
void require_one_process(const std::string& bench) {
  const std::optional<launch::ProcessPlace> place = launch::find_place();
  if (!place || place->world == 1) return;
  fail<InvalidArgument>(
      "bench {}: this is rank {} of {} that {} started, and this bench runs no ranks; one process "
      "is required, or bench layer, overlap, live or collectives",
      bench, place->rank, place->world, place->launcher);
}

/// One of the benches as a verb, with functions that add the flags it shares with others.
struct BenchCommand {
  CLI::App* app;
  std::shared_ptr<BenchFlags> flags = std::make_shared<BenchFlags>();

  /// A flag with a value, which may be left out but not be empty.
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
  /// A layer on ranks, with its defaults.
  void add_spread() const {
    flags->tokens = "1024";
    flags->layout = "zigzag";
    flags->world = "2";
    add_shape("Tokens of a rank [1024]");
    add_problem();
    add("--layout", flags->layout, "Which tokens live on which rank [zigzag]");
    add("--world", flags->world, "Ranks: threads, or processes as --engine says [2]");
    app->add_option("--strategy", flags->strategies,
                    "May be given several times: they take turns [ring]")
        ->option_text(" ")
        ->expected(1)
        ->take_all();
  }
  /// How long, and in which form; all benches have these.
  void add_turns() const {
    add("--seconds", flags->seconds, "How long to measure; at least 3 turns [2]");
    app->add_flag("--json", flags->json, "One JSON object a line");
  }
  /// For benches that have sides of their own.
  CLI::Option* add_on_request() const {
    return app->add_flag("--on-request", flags->on_request,
                         "Run what a line of standard input names, and answer with its value");
  }
  /// For benches that other programs can join.
  CLI::Option* add_against() const {
    CLI::Option* option =
        app->add_option("--against", flags->against,
                        "Command of a program that takes turns with these sides; several times too")
            ->option_text("COMMAND")
            ->expected(1)
            ->take_all()
            ->check(not_empty());
    add("--deadline", flags->deadline, "Seconds for each answer of such a program [600]");
    return option;
  }
  /// The last three together. A program that runs on request takes no turns by itself.
  void add_output() const {
    add_turns();
    add_against()->excludes(add_on_request());
  }
  /// Sets the action of the verb: `case_of` makes the case, which a Rate measures.
  template <class Rate, class Case>
  void measures(Case (*case_of)(const BenchFlags&), int& exit_code) const {
    app->callback([values = flags, case_of, name = app->get_name(), &exit_code] {
      require_one_process(name);
      measure<Rate>(case_of(*values), *values);
      exit_code = kDone;
    });
  }
};

// Each function below adds one bench: its flags with their defaults, and its help.

void add_kernel(CLI::App& verb, int& exit_code) {
  // Defaults that differ between benches, then flags.
  const BenchCommand bench{verb.add_subcommand("kernel", "Attention of one block on one rank")};
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
      "Rates are medians of turns in which the peak, ours and PyTorch's flash kernel take turns;\n"
      "ARMILLARY_ISA=amx|avx512_bf16|avx512|avx2|portable forces an instruction set (armillary "
      "doctor).\n"
      "\nExamples:\n"
      "  armillary bench kernel --dtype bf16 --tokens 4096 --mask causal --pass backward --sdpa\n"
      "  armillary bench kernel --mask window:left=1023,right=0 --tokens 16384 --json\n"
      "  armillary bench kernel --layout zigzag --world 4 --tokens 4096\n");
  bench.measures<bench::KernelRate>(kernel_case, exit_code);
}

void add_layer(CLI::App& verb, int& exit_code) {
  const BenchCommand bench{verb.add_subcommand("layer", "One attention layer, spread over ranks")};
  bench.add_spread();
  bench.app->add_flag("--no-kernels", bench.flags->no_kernels,
                      "Leave out what the kernel calls take alone");
  bench.add("--flight", bench.flags->flight,
            "Folder for the last ops of each rank, recorded as `armillary train` does [none]");
  bench.add_output();
  bench.app->footer(
      "Forward, and forward with backward. Efficiency is one rank's time for the whole sequence, "
      "over\nthe ranks, over theirs; `busy` is against one rank while all cores work.\n"
      "\nExamples:\n"
      "  armillary bench layer --tokens 2048 --strategy ring --strategy usp:u=2 --json\n"
      "  armillary bench layer --tokens 16 --heads 1 --head-dim 8\n"
      "  armillary launch -n 2 -- bench layer --tokens 8192\n"
      "  armillary bench layer --tokens 16 --flight run && armillary explain run\n");
  add_engine_flags(*bench.app, bench.flags->engine);
  bench.app->callback([flags = bench.flags, &exit_code] {
    bench::LayerCase spec = layer_case(*flags);
    // `launch` tells the cause of a failure from what flight recorders have kept.
    if (spec.run_folder.empty()) spec.run_folder = launch::own_flight_folder();
    if (!spec.run_folder.empty()) launch::tell_run_folder(spec.run_folder);
    measure_on_ranks<bench::LayerRate>(spec, *flags);
    exit_code = kDone;
  });
}

void add_overlap(CLI::App& verb, int& exit_code) {
  const BenchCommand bench{
      verb.add_subcommand("overlap", "How much of a layer's communication its compute hides")};
  bench.add_spread();
  bench.add("--ranks-per-node", bench.flags->ranks_per_node,
            "Ranks of a host, for the bytes that leave it [1]");
  CLI::Option* const step =
      bench.app->add_flag("--step", bench.flags->step, "A training step, not a layer");
  const auto add_of_step = [&](const char* name, std::string& value, const char* help) {
    bench.app->add_option(name, value, help)->option_text(" ")->check(not_empty())->needs(step);
  };
  for (const char* const of_layer : {"--head-dim", "--dtype", "--kv-heads", "--mask", "--layout",
                                     "--strategy", "--ranks-per-node"}) {
    step->excludes(bench.app->get_option(of_layer));
  }
  add_of_step("--zero", bench.flags->zero, "Stage of ZeRO of the step, 1 to 3 [3]");
  add_of_step("--layers", bench.flags->layers, "Layers of the step's model [8]");
  add_of_step("--dim", bench.flags->dim, "Width of the step's model [512]");
  add_of_step("--link", bench.flags->link,
              "Mbit/s of a link of each thread that needs no core [memory]");
  bench.add("--least", bench.flags->least, "Turns at least, however long they take [3]");
  bench.add("--deadline", bench.flags->deadline, "Seconds of each wait for another rank [600]");
  bench.add_turns();
  bench.add_on_request();
  bench.app->footer(
      "Exposed: time of the layer beyond its compute alone, over that of its messages alone.\n"
      "With --step the same of gathers and sums of a Llama's training step on ranks along dp.\n"
      "Between emulated hosts: ./dev bench overlap\n"
      "\nExamples:\n"
      "  armillary launch -n 2 -- bench overlap --tokens 4096 --strategy tokenring\n"
      "  armillary launch -n 2 -- bench overlap --step --zero 3 --tokens 1024\n");
  add_engine_flags(*bench.app, bench.flags->engine);
  bench.app->callback([flags = bench.flags, &exit_code] {
    if (flags->step) {
      measure_on_ranks<bench::StepOverlapRate>(step_overlap_case(*flags), *flags);
    } else {
      measure_on_ranks<bench::OverlapRate>(overlap_case(*flags), *flags);
    }
    exit_code = kDone;
  });
}

void add_live(CLI::App& verb, int& exit_code) {
  const BenchCommand bench{verb.add_subcommand("live", "A layer on ranks beside its simulation")};
  bench.add_spread();
  bench.add("--cluster", bench.flags->cluster, "File of `armillary calibrate` for these ranks");
  bench.add("--least", bench.flags->least, "Turns at least, however long they take [3]");
  bench.add("--deadline", bench.flags->deadline, "Seconds of each wait for another rank [600]");
  bench.add_turns();
  bench.add_on_request();
  bench.app->footer(
      "Ratio: simulated over measured time; that of compute is of the same layer without "
      "messages.\nAll cells, between emulated hosts too: ./dev bench live\n"
      "\nExamples:\n"
      "  armillary calibrate --world 2 --out here.toml\n"
      "  armillary bench live --cluster here.toml --tokens 2048 --strategy ring\n");
  add_engine_flags(*bench.app, bench.flags->engine);
  bench.app->callback([flags = bench.flags, &exit_code] {
    measure_on_ranks<calibrate::LiveRate>(live_case(*flags), *flags);
    exit_code = kDone;
  });
}

void add_collectives(CLI::App& verb, int& exit_code) {
  const BenchCommand bench{
      verb.add_subcommand("collectives", "Started collectives alone and beside compute")};
  bench.flags->world = "2";
  bench.add("--world", bench.flags->world, "Ranks: threads, or processes as --engine says [2]");
  bench.app
      ->add_option("--bytes", bench.flags->bytes,
                   "Of one rank's part, in fp32; several times too [1024, 65536, 4194304]")
      ->option_text(" ")
      ->expected(1)
      ->take_all();
  bench.add("--least", bench.flags->least, "Turns at least, however long they take [3]");
  bench.add("--deadline", bench.flags->deadline, "Seconds of each wait for another rank [600]");
  bench.add_turns();
  bench.add_on_request();
  bench.app->footer(
      "Hidden: time of the collective and of compute that takes as long, less that of both at "
      "once,\nover that of the collective. Bare: the same messages, and the sum, without a "
      "collective.\nMessages and bytes are those that a rank sends in a call.\n"
      "\nExamples:\n"
      "  armillary bench collectives --bytes 1048576\n"
      "  armillary launch --engine mpi -n 2 -- bench collectives\n");
  add_engine_flags(*bench.app, bench.flags->engine);
  bench.app->callback([flags = bench.flags, &exit_code] {
    measure_on_ranks<bench::CollectivesRate>(collectives_case(*flags), *flags);
    exit_code = kDone;
  });
}

void add_merge(CLI::App& verb, int& exit_code) {
  const BenchCommand bench{
      verb.add_subcommand("merge", "Merging and adding, beside the speed of memory")};
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
  const BenchCommand bench{
      verb.add_subcommand("cores", "Two threads beside one: whether a second core is there")};
  bench.add_turns();
  bench.add_on_request();
  bench.app->footer(
      "The rate of two independent peaks over that of one: below 1.8 another has the second core,\n"
      "or it is half of the first. Other benches of several threads ask it in every turn, and "
      "leave\n"
      "such turns out.\n"
      "\nExamples:\n"
      "  armillary bench cores\n");
  bench.measures<bench::CoresRate>(cores_case, exit_code);
}

void add_turns(CLI::App& verb, int& exit_code) {
  const BenchCommand bench{verb.add_subcommand("turns", "Other programs, each a run a turn")};
  bench.add_turns();
  bench.add("--least", bench.flags->least, "Turns at least, however long they take [3]");
  bench.add_against();
  bench.app->add_flag("--cores", bench.flags->cores,
                      "Leave out turns in which a second core was not there");
  bench.app->footer(
      "A program prints {\"sides\": [\"a\", ..]} when it is ready, reads lines that name a side, "
      "and "
      "answers\nwith {\"side\": \"a\", \"value\": 0.5} or {\"side\": \"a\", \"error\": "
      "\"reason\"}. The "
      "result is the median\nof each side.\n"
      "\nExamples:\n"
      "  armillary bench turns --against 'old/armillary bench kernel --on-request' \\\n"
      "      --against 'new/armillary bench kernel --on-request' --json\n");
  bench.app->callback([values = bench.flags, &exit_code] {
    require_one_process("turns");
    measure_others(*values);
    exit_code = kDone;
  });
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("bench", kBenchDescription);
  add_kernel(*verb, exit_code);
  add_layer(*verb, exit_code);
  add_overlap(*verb, exit_code);
  add_live(*verb, exit_code);
  add_collectives(*verb, exit_code);
  add_merge(*verb, exit_code);
  add_cores(*verb, exit_code);
  add_turns(*verb, exit_code);
  verb->allow_extras();  // An unknown bench is refused below, with the list of benches.
  verb->callback([verb] {
    // The callback of the bench has run by itself. Without one, the error lists all benches.
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
