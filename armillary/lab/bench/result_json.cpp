// A line begins with the facts of its case; update() then appends counts and rates, in the order in
// which a reader wants to see them.
#include "armillary/lab/bench/result_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace armillary::bench {
namespace {

using Json = nlohmann::ordered_json;

/// The keys that all lines of a layer begin with.
Json layer_case(const char* bench, const LayerCase& spec, const std::string& isa) {
  return {{"bench", bench},
          {"isa", isa},
          {"dtype", to_string(spec.dtype)},
          {"head_dim", spec.head_dim},
          {"tokens", spec.tokens},
          {"heads", spec.heads},
          {"kv_heads", spec.kv_heads},
          {"mask", spec.mask},
          {"layout", spec.layout},
          {"world", spec.world},
          {"engine", spec.engine}};
}

}  // namespace

Json turn_counts(const TurnSummary& turns) {
  Json counts{{"turns", turns.count}};
  if (!turns.medians.contains(kCoresSide)) return counts;
  counts["left_out_turns"] = turns.left_out.size();
  counts["left_out_cores"] = turns.left_out;
  counts["all_left_out"] = turns.all_left_out;
  return counts;
}

Json facts_json(const KernelCase& spec, const KernelRate& rate) {
  Json line{{"bench", "kernel"},
            {"isa", rate.facts().isa},
            {"dtype", to_string(spec.dtype)},
            {"head_dim", spec.head_dim},
            {"tokens", spec.tokens},
            {"heads", spec.heads},
            {"kv_heads", spec.kv_heads},
            {"mask", spec.mask},
            {"layout", spec.layout},
            {"world", spec.world},
            {"pass", to_string(spec.pass)},
            {"threads", spec.threads},
            {"flops", rate.facts().flops},
            {"max_error", rate.facts().max_error}};
  if (rate.facts().sdpa_max_error) line["sdpa_max_error"] = *rate.facts().sdpa_max_error;
  return line;
}

// One line: the pass that is timed is a part of the case.
std::vector<Json> result_lines(const KernelCase& spec, const KernelRate& rate,
                               const TurnSummary& turns) {
  Json line = facts_json(spec, rate);
  // Rates, and quotients with those of the peak and of PyTorch.
  const double gflops = turns.medians.at("kernel");
  const double peak = turns.medians.at("peak");
  line.update(turn_counts(turns));
  line.update({{"gflops", gflops}, {"peak_gflops", peak}, {"of_peak", gflops / peak}});
  if (const auto sdpa = turns.medians.find("sdpa"); sdpa != turns.medians.end()) {
    line.update({{"sdpa_gflops", sdpa->second}, {"over_sdpa", gflops / sdpa->second}});
  }
  return {line};
}

Json facts_json(const LayerCase& spec, const LayerRate& rate) {
  Json line = layer_case("layer", spec, rate.isa());
  line["flops"] = {{kPassNames[0], rate.flops(false)}, {kPassNames[1], rate.flops(true)}};
  // Errors by strategy.
  for (const LayerFacts& facts : rate.facts()) {
    line["max_error"][facts.strategy] = facts.max_error;
  }
  return line;
}

namespace {

/// Times of one strategy and pass: against the peak, against one rank, and beyond its kernel calls.
Json layer_times(const LayerCase& spec, const LayerRate& rate, const LayerFacts& facts, bool both,
                 const TurnSummary& turns) {
  const std::string pass = kPassNames[both ? 1 : 0];
  const std::string side = facts.strategy + " " + pass;
  const double seconds = turns.medians.at(side);
  const double one = turns.medians.at("one_rank " + pass);
  const double busy = turns.medians.at("busy_rank " + pass);
  const double peak = turns.medians.at("peak");
  const double gflops = rate.flops(both) / seconds / 1e9;
  // Efficiency: one rank's time for the whole sequence, over the ranks, over theirs.
  Json times{{"seconds", seconds},        {"gflops", gflops},
             {"peak_gflops", peak},       {"of_peak", gflops / peak},
             {"one_rank_seconds", one},   {"efficiency", one / spec.world / seconds},
             {"busy_rank_seconds", busy}, {"efficiency_busy", busy / spec.world / seconds}};
  // Time beyond the kernel calls: of medians, and of the quickest turns of both.
  const std::string kernels = facts.strategy + " kernels " + pass;
  if (!turns.medians.contains(kernels)) return times;
  const double over = 1e6 * (seconds - turns.medians.at(kernels));
  const double least = 1e6 * (turns.leasts.at(side) - turns.leasts.at(kernels));
  times.update({{"kernel_seconds", turns.medians.at(kernels)},
                {"over_kernels_us", over},
                {"least_over_kernels_us", least},
                {"us_an_op", over / static_cast<double>(facts.ops[both ? 1 : 0])}});
  return times;
}

}  // namespace

// A line for each strategy and pass, strategies in the order of the case.
std::vector<Json> result_lines(const LayerCase& spec, const LayerRate& rate,
                               const TurnSummary& turns) {
  std::vector<Json> lines;
  for (const LayerFacts& facts : rate.facts()) {
    for (const int both : {0, 1}) {
      // The case, the counts, the times, and the facts of the strategy.
      Json line = layer_case("layer", spec, rate.isa());
      line.update({{"strategy", facts.strategy}, {"pass", kPassNames[both]}});
      line.update(turn_counts(turns));
      line.update(layer_times(spec, rate, facts, both != 0, turns));
      line.update({{"ops", facts.ops[both]},
                   {"allocations", facts.allocations[both]},
                   {"max_error", facts.max_error}});
      lines.push_back(line);
    }
  }
  return lines;
}

Json facts_json(const OverlapCase& spec, const OverlapRate& rate) {
  return layer_case("overlap", spec.layer, rate.isa());
}

std::vector<Json> result_lines(const OverlapCase& spec, const OverlapRate& rate,
                               const TurnSummary& turns) {
  std::vector<Json> lines;
  for (const OverlapFacts& facts : rate.facts()) {
    for (const int both : {0, 1}) {
      const auto side = [&](const std::string& part) {
        return turns.medians.at(facts.strategy + part + " " + kPassNames[both]);
      };
      Json line = facts_json(spec, rate);
      line.update({{"strategy", facts.strategy}, {"pass", kPassNames[both]}});
      line.update(turn_counts(turns));
      line.update({{"seconds", side("")},
                   {"compute_seconds", side(" compute")},
                   {"messages_seconds", side(" messages")},
                   {"exposed", (side("") - side(" compute")) / side(" messages")},
                   {"ranks_per_node", spec.ranks_per_node},
                   {"sent_bytes", facts.sent_bytes[both]},
                   {"lone_bytes", facts.lone_bytes[both]}});
      lines.push_back(line);
    }
  }
  return lines;
}

Json facts_json(const StepOverlapCase& spec, const StepOverlapRate& rate) {
  return {{"bench", "step_overlap"},
          {"world", spec.world},
          {"engine", spec.engine},
          {"zero", spec.zero},
          {"layers", spec.layers},
          {"dim", spec.dim},
          {"heads", spec.heads},
          {"tokens", spec.tokens},
          {"loss", rate.facts().loss},
          {"grad_norm", rate.facts().grad_norm},
          {"link_bytes_per_s", spec.link_bytes_per_s}};
}

std::vector<Json> result_lines(const StepOverlapCase& spec, const StepOverlapRate& rate,
                               const TurnSummary& turns) {
  // Least values: what else runs only adds time, and differences are small beside the steps.
  const StepValues& values = rate.facts().values;
  const double whole = turns.leasts.at("step");
  const double pace = turns.leasts.at("step pace");
  const double compute = turns.leasts.at("step compute");
  const double messages = turns.leasts.at("step messages");
  const double exposed = (whole - compute) / messages;
  const double exposed_bytes = (whole - pace) / messages;
  const double lone = static_cast<double>(values.lone) / static_cast<double>(values.all);
  Json line = facts_json(spec, rate);
  line.update(turn_counts(turns));
  line.update({{"seconds", whole},
               {"compute_seconds", compute},
               {"messages_seconds", messages},
               {"exposed", exposed},
               {"by_the_plan", lone},
               {"pace_seconds", pace},
               {"exposed_of_the_rest", (exposed - lone) / (1 - lone)},
               {"exposed_bytes_of_the_rest", (exposed_bytes - lone) / (1 - lone)}});
  return {line};
}

Json facts_json(const CollectivesCase& spec, const CollectivesRate& /*rate*/) {
  return {{"bench", "collectives"}, {"world", spec.world}, {"engine", spec.engine}};
}

std::vector<Json> result_lines(const CollectivesCase& spec, const CollectivesRate& rate,
                               const TurnSummary& turns) {
  std::vector<Json> lines;
  for (const CollectiveFacts& facts : rate.facts()) {
    const auto side = [&](const char* what) {
      return turns.medians.at(fmt::format("{} {}{}", facts.operation, facts.part_bytes, what));
    };
    const double alone = side("");
    Json line = facts_json(spec, rate);
    line.update({{"operation", facts.operation}, {"part_bytes", facts.part_bytes}});
    line.update(turn_counts(turns));
    line.update({{"seconds", alone},
                 {"bare_seconds", side(" bare")},
                 {"over_bare_us", 1e6 * (alone - side(" bare"))},
                 {"compute_seconds", side(" compute")},
                 {"beside_seconds", side(" beside")},
                 {"hidden", (alone + side(" compute") - side(" beside")) / alone},
                 {"messages", facts.messages},
                 {"bytes", facts.bytes},
                 {"label_bytes", facts.label_bytes}});
    lines.push_back(line);
  }
  return lines;
}

Json facts_json(const MergeCase& spec, const MergeRate& rate) {
  return {{"bench", "merge"},
          {"isa", rate.isa()},
          {"tokens", spec.tokens},
          {"heads", spec.heads},
          {"head_dim", spec.head_dim},
          {"threads", spec.threads},
          {"tensor_bytes", rate.tensor_bytes()},
          {"max_error", rate.max_error()}};
}

// Two lines: merging and adding move the same bytes, so both compare with the same two loops.
std::vector<Json> result_lines(const MergeCase& spec, const MergeRate& rate,
                               const TurnSummary& turns) {
  const auto& medians = turns.medians;
  // The speed of memory is that of the faster of the two ways to move as many bytes.
  const double memory = std::max(medians.at("loop"), medians.at("memcpy"));
  std::vector<Json> lines;
  for (const char* what : {"merge", "add"}) {
    Json line = facts_json(spec, rate);
    line["what"] = what;
    line.update(turn_counts(turns));
    line.update({{"gbytes_per_s", medians.at(what)},
                 {"loop_gbytes_per_s", medians.at("loop")},
                 {"memcpy_gbytes_per_s", medians.at("memcpy")},
                 {"of_memory", medians.at(what) / memory}});
    lines.push_back(line);
  }
  return lines;
}

Json facts_json(const CoresCase& /*given*/, const CoresRate& /*rate*/) {
  return {{"bench", "cores"}};
}

std::vector<Json> result_lines(const CoresCase& spec, const CoresRate& rate,
                               const TurnSummary& turns) {
  Json line = facts_json(spec, rate);
  line.update(turn_counts(turns));
  line["cores"] = turns.medians.at(kCoresSide);
  return {line};
}

Json turns_json(const TurnSummary& turns, const Contenders& contenders) {
  Json line{{"bench", "turns"}};
  line.update(turn_counts(turns));
  line.update({{"medians", turns.medians},
               {"leasts", turns.leasts},
               {"reasons", turns.reasons},
               {"contenders", contenders.json()}});
  return line;
}

std::vector<std::string> turns_text(const TurnSummary& turns, const Contenders& contenders) {
  std::vector<std::string> lines;
  lines.reserve(turns.medians.size());
  for (const auto& [side, value] : turns.medians) {
    lines.push_back(
        fmt::format("{}: median {:.4g}, least {:.4g}", side, value, turns.leasts.at(side)));
  }
  for (const auto& [side, reason] : turns.reasons) {
    lines.push_back(fmt::format("{}: not measured: {}", side, reason));
  }
  // Contenders that have no sides, because they never were ready.
  for (const Json& contender : contenders.json()) {
    if (!contender.contains("reason")) continue;
    lines.push_back(fmt::format("`{}` takes no turns: {}", contender["command"].get<std::string>(),
                                contender["reason"].get<std::string>()));
  }
  return lines;
}

std::string left_out_text(const TurnSummary& turns) {
  if (!turns.medians.contains(kCoresSide)) return {};
  // With `all_left_out`, the medians are of turns that were left out: none was kept.
  const std::size_t count = turns.all_left_out ? 0 : static_cast<std::size_t>(turns.count);
  const std::size_t all = count + turns.left_out.size();
  if (turns.left_out.empty()) return fmt::format("no turn of {} left out", all);
  const std::string text = fmt::format(
      "{} of {} turns left out: two cores had {:.2f} of the rate of one; {} is required",
      turns.left_out.size(), all, fmt::join(turns.left_out, ", "), kLeastCores);
  return turns.all_left_out ? text + "; NO turn had two cores: the medians above are of all of them"
                            : text;
}

}  // namespace armillary::bench
