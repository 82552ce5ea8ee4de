#include "armillary/bench/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace armillary::bench {
namespace {

using Json = nlohmann::ordered_json;

/// What a layer and its strategies are called by in all lines.
Json layer_case(const LayerCase& given, const LayerRate& rate) {
  return {{"bench", "layer"},           {"isa", rate.isa()},      {"dtype", to_string(given.dtype)},
          {"head_dim", given.head_dim}, {"tokens", given.tokens}, {"heads", given.heads},
          {"kv_heads", given.kv_heads}, {"mask", given.mask},     {"layout", given.layout},
          {"world", given.world}};
}

/// How many rounds the medians are of, and which were left out.
void add_rounds(Json& line, const Rounds& rounds) {
  line["rounds"] = rounds.count;
  if (!rounds.medians.contains(kCoresSide)) return;
  line["left_out_rounds"] = rounds.left_out.size();
  line["left_out_cores"] = rounds.left_out;
  line["all_left_out"] = rounds.all_left_out;
}

}  // namespace

Json facts_json(const KernelCase& given, const KernelRate& rate) {
  Json line{{"bench", "kernel"},
            {"isa", rate.facts().isa},
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
            {"flops", rate.facts().flops},
            {"max_error", rate.facts().max_error}};
  if (rate.facts().sdpa_max_error) line["sdpa_max_error"] = *rate.facts().sdpa_max_error;
  return line;
}

std::vector<Json> report(const KernelCase& given, const KernelRate& rate, const Rounds& rounds) {
  Json line = facts_json(given, rate);
  const double gflops = rounds.medians.at("kernel");
  const double peak = rounds.medians.at("peak");
  add_rounds(line, rounds);
  line.update({{"gflops", gflops}, {"peak_gflops", peak}, {"of_peak", gflops / peak}});
  if (const auto sdpa = rounds.medians.find("sdpa"); sdpa != rounds.medians.end()) {
    line.update({{"sdpa_gflops", sdpa->second}, {"over_sdpa", gflops / sdpa->second}});
  }
  return {line};
}

Json facts_json(const LayerCase& given, const LayerRate& rate) {
  Json line = layer_case(given, rate);
  line["flops"] = {{kPassNames[0], rate.flops(false)}, {kPassNames[1], rate.flops(true)}};
  for (const LayerFacts& facts : rate.facts()) {
    line["max_error"][facts.strategy] = facts.max_error;
  }
  return line;
}

std::vector<Json> report(const LayerCase& given, const LayerRate& rate, const Rounds& rounds) {
  std::vector<Json> lines;
  const double peak = rounds.medians.at("peak");
  for (const LayerFacts& facts : rate.facts()) {
    for (const int both : {0, 1}) {
      const std::string pass = kPassNames[both];
      const double seconds = rounds.medians.at(facts.strategy + " " + pass);
      const double one = rounds.medians.at("one_rank " + pass);
      const double busy = rounds.medians.at("busy_rank " + pass);
      const double gflops = rate.flops(both != 0) / seconds / 1e9;
      Json line = layer_case(given, rate);
      line.update({{"strategy", facts.strategy}, {"pass", pass}});
      add_rounds(line, rounds);
      line.update({{"seconds", seconds},
                   {"gflops", gflops},
                   {"peak_gflops", peak},
                   {"of_peak", gflops / peak},
                   {"one_rank_seconds", one},
                   {"efficiency", one / given.world / seconds},
                   {"busy_rank_seconds", busy},
                   {"efficiency_busy", busy / given.world / seconds}});
      const std::string kernels = facts.strategy + " kernels " + pass;
      if (rounds.medians.contains(kernels)) {
        const double over = 1e6 * (seconds - rounds.medians.at(kernels));
        const double least = rounds.leasts.at(facts.strategy + " " + pass);
        line.update({{"kernel_seconds", rounds.medians.at(kernels)},
                     {"over_kernels_us", over},
                     {"least_over_kernels_us", 1e6 * (least - rounds.leasts.at(kernels))},
                     {"us_an_op", over / static_cast<double>(facts.ops[both])}});
      }
      line.update({{"ops", facts.ops[both]},
                   {"allocations", facts.allocations[both]},
                   {"max_error", facts.max_error}});
      lines.push_back(line);
    }
  }
  return lines;
}

Json facts_json(const MergeCase& given, const MergeRate& rate) {
  return {{"bench", "merge"},
          {"isa", rate.isa()},
          {"tokens", given.tokens},
          {"heads", given.heads},
          {"head_dim", given.head_dim},
          {"threads", given.threads},
          {"tensor_bytes", rate.tensor_bytes()},
          {"max_error", rate.max_error()}};
}

std::vector<Json> report(const MergeCase& given, const MergeRate& rate, const Rounds& rounds) {
  const auto& medians = rounds.medians;
  const double memory = std::max(medians.at("loop"), medians.at("memcpy"));
  std::vector<Json> lines;
  for (const char* what : {"merge", "add"}) {
    Json line = facts_json(given, rate);
    line["what"] = what;
    add_rounds(line, rounds);
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

std::vector<Json> report(const CoresCase& given, const CoresRate& rate, const Rounds& rounds) {
  Json line = facts_json(given, rate);
  add_rounds(line, rounds);
  line["cores"] = rounds.medians.at(kCoresSide);
  return {line};
}

std::string left_out_text(const Rounds& rounds) {
  if (!rounds.medians.contains(kCoresSide)) return {};
  const std::size_t kept = rounds.all_left_out ? 0 : static_cast<std::size_t>(rounds.count);
  const std::size_t all = kept + rounds.left_out.size();
  if (rounds.left_out.empty()) return fmt::format("no round of {} left out", all);
  const std::string text = fmt::format(
      "{} of {} rounds left out: two cores had {:.2f} of the rate of one; {} is required",
      rounds.left_out.size(), all, fmt::join(rounds.left_out, ", "), kLeastCores);
  return rounds.all_left_out
             ? text + "; NO round had two cores: the medians above are of all of them"
             : text;
}

}  // namespace armillary::bench
