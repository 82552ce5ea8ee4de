// The verb `bench`: how fast parts are on this machine, each checked before it is timed.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "armillary/bench/kernel_rate.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/plan/problem.h"
#include "cli/problem_flags.h"
#include "cli/verbs.h"

namespace armillary::cli {
namespace {

/// As given on the command line.
struct KernelFlags {
  std::string dtype = "fp32";
  std::string head_dim = "128";
  std::string tokens = "4096";
  std::string heads = "8";
  std::string kv_heads;
  std::string mask = "causal";
  std::string layout = "contiguous";
  std::string world = "1";
  std::string pass = "forward";
  std::string threads = "1";
  std::string seconds = "2";
  bool sdpa = false;
  bool json = false;
};

bench::KernelCase kernel_case(const KernelFlags& flags) {
  constexpr std::array<std::string_view, 2> kPasses{"forward", "backward"};
  const bool forward = parse_choice("--pass", flags.pass, kPasses) == 0;
  const int heads = parse_count("--heads", flags.heads);
  return {.dtype = plan::parse_dtype(flags.dtype),
          .head_dim = parse_count("--head-dim", flags.head_dim),
          .tokens = parse_count("--tokens", flags.tokens),
          .heads = heads,
          .kv_heads = flags.kv_heads.empty() ? heads : parse_count("--kv-heads", flags.kv_heads),
          .mask = flags.mask,
          .layout = flags.layout,
          .world = parse_count("--world", flags.world),
          .pass = forward ? plan::Pass::Forward : plan::Pass::Backward,
          .threads = parse_count("--threads", flags.threads)};
}

nlohmann::ordered_json to_json(const bench::KernelCase& given, const bench::KernelRate& rate) {
  nlohmann::ordered_json line{{"bench", "kernel"},
                              {"isa", rate.isa},
                              {"dtype", to_string(given.dtype)},
                              {"head_dim", given.head_dim},
                              {"tokens", given.tokens},
                              {"heads", given.heads},
                              {"kv_heads", given.kv_heads},
                              {"mask", given.mask},
                              {"layout", given.layout},
                              {"world", given.world},
                              {"pass", to_string(given.pass)},
                              {"threads", given.threads},
                              {"rounds", rate.rounds},
                              {"gflops", rate.gflops},
                              {"peak_gflops", rate.peak_gflops},
                              {"of_peak", rate.gflops / rate.peak_gflops},
                              {"max_error", rate.max_error}};
  if (rate.sdpa_gflops) {
    line["sdpa_gflops"] = *rate.sdpa_gflops;
    line["over_sdpa"] = rate.gflops / *rate.sdpa_gflops;
  }
  return line;
}

void run_kernel(const KernelFlags& flags) {
  const bench::KernelCase given = kernel_case(flags);
  const double seconds = parse_count("--seconds", flags.seconds);
  const bench::KernelRate rate = bench::measure_kernel(given, seconds, flags.sdpa);
  if (flags.json) {
    fmt::print("{}\n", to_json(given, rate).dump());
    return;
  }
  fmt::print(
      "{} {} d={} {} tokens {} {} {} thread(s): {:.1f} GFLOP/s, {:.1f} % of {:.1f} (peak), error "
      "{:.2g}",
      rate.isa, to_string(given.dtype), given.head_dim, given.tokens, given.mask,
      to_string(given.pass), given.threads, rate.gflops, 100 * rate.gflops / rate.peak_gflops,
      rate.peak_gflops, rate.max_error);
  if (rate.sdpa_gflops) {
    fmt::print("; PyTorch {:.1f}, ours {:.2f} times", *rate.sdpa_gflops,
               rate.gflops / *rate.sdpa_gflops);
  }
  fmt::print("\n");
}

constexpr const char* kBenchExamples =
    "Every result is checked against fp64 first. Rates are medians of rounds in which the peak, "
    "ours\n"
    "and PyTorch's flash kernel take turns; ARMILLARY_ISA=portable|avx2|avx512 forces a lower\n"
    "instruction set.\n"
    "\nExamples:\n"
    "  armillary bench kernel --dtype bf16 --tokens 4096 --mask causal --pass backward --sdpa\n"
    "  armillary bench kernel --mask window:left=1023,right=0 --tokens 16384 --json\n"
    "  armillary bench kernel --layout zigzag --world 4 --tokens 4096\n";

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("bench", "Measure parts of the program on this machine");
  verb->callback([verb] {
    if (verb->get_subcommands().empty()) {
      fail<InvalidArgument>("bench: what to measure is not named; kernel is required");
    }
  });
  verb->footer("`armillary bench kernel --help` has examples.");
  const auto flags = std::make_shared<KernelFlags>();
  CLI::App* kernel = verb->add_subcommand("kernel", "Attention of one block on one rank");
  const auto add = [&](const char* name, std::string& value, const char* help) {
    kernel->add_option(name, value, help)->option_text(" ")->check(not_empty());
  };
  add("--dtype", flags->dtype, "fp32, bf16 or fp16 [fp32]");
  add("--head-dim", flags->head_dim, "Dim of a head, 1 to 256 [128]");
  add("--tokens", flags->tokens, "Rows of Q, K and V [4096]");
  add("--heads", flags->heads, "Query heads [8]");
  add("--kv-heads", flags->kv_heads, "KV heads; must divide the query heads [as many]");
  add("--mask", flags->mask, "As for `armillary plan`, over tokens x world [causal]");
  add("--layout", flags->layout, "Rows are the tokens of rank 0 in this layout [contiguous]");
  add("--world", flags->world, "Ranks of that layout [1]");
  add("--pass", flags->pass, "forward or backward [forward]");
  add("--threads", flags->threads, "Threads of the rank [1]");
  add("--seconds", flags->seconds, "How long to measure [2]");
  kernel->add_flag("--sdpa", flags->sdpa, "PyTorch's flash kernel beside it (full and causal)");
  kernel->add_flag("--json", flags->json, "One JSON object on one line");
  kernel->footer(kBenchExamples);
  kernel->callback([flags, &exit_code] {
    run_kernel(*flags);
    exit_code = kDone;
  });
}

}  // namespace armillary::cli
