// Plans to and from JSON with nlohmann::json. The programs are written and read by
// program/program_json.h; here are the problem and the blocks, each struct by one function.
#include "armillary/plan/json.h"

#include <array>
#include <utility>
#include <vector>

#include "armillary/plan/program/program_json.h"

namespace armillary::plan {
namespace {

// All values of the enums, for reading: a name is looked up among the names of these.
constexpr std::array kDtypes{Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F16};
constexpr std::array kTransferDtypes{TransferDtype::Accumulator, TransferDtype::Input};
constexpr std::array kPasses{Pass::Forward, Pass::Backward, Pass::Replay};

// ---- writing

Json to_json(const Interval& range) {
  return Json::array({range.begin, range.end});
}

/// The bands of the mask: whatever name it was made from, it is read back as the same bands.
Json to_json(const Mask& mask) {
  Json bands = Json::array();
  for (const Band& band : mask.bands()) {
    bands.push_back(
        {{"q", to_json(band.q)}, {"k", to_json(band.k)}, {"lo", band.lo}, {"hi", band.hi}});
  }
  return {{"q_len", mask.q_len()}, {"kv_len", mask.kv_len()}, {"bands", std::move(bands)}};
}

/// Named json_of because the public to_json(const Problem&) returns text.
Json json_of(const Problem& problem) {
  return {{"world", problem.world},
          {"batch", problem.batch},
          {"heads", problem.heads},
          {"kv_heads", problem.kv_heads},
          {"head_dim", problem.head_dim},
          {"value_dim", problem.value_dim},
          {"dtype", to_string(problem.dtype)},
          {"return_lse", problem.return_lse},
          {"wire", to_string(problem.transfer_dtype)},
          {"layout", to_string(problem.layout)},
          {"mask", to_json(problem.mask)}};
}

/// Blocks with their owners and runs of positions.
Json to_json(const std::vector<Block>& blocks) {
  Json list = Json::array();
  for (const Block& block : blocks) {
    Json runs = Json::array();
    for (const Run& run : block.runs) {
      runs.push_back(
          {{"begin", run.begin}, {"count", run.count}, {"step", run.step}, {"width", run.width}});
    }
    list.push_back({{"owner", block.owner}, {"runs", std::move(runs)}});
  }
  return list;
}

// ---- reading

Interval parse_interval(const Node& node) {
  const auto [begin, end] = node.range<std::int64_t>();
  return {begin, end};
}

Band parse_band(const Node& node) {
  node.object({"q", "k", "lo", "hi"});
  return {parse_interval(node["q"]), parse_interval(node["k"]), node["lo"].integer<std::int64_t>(),
          node["hi"].integer<std::int64_t>()};
}

/// The lengths and bands must be those of a Mask, which checks them.
Mask parse_mask(const Node& node) {
  node.object({"q_len", "kv_len", "bands"});
  const auto q_len = node["q_len"].integer<std::int64_t>();
  const auto kv_len = node["kv_len"].integer<std::int64_t>();
  const auto bands = node["bands"].list(parse_band);
  return node.checked([&] { return Mask(q_len, kv_len, bands); });
}

/// A validated problem: the layout is parsed from its text, sizes are checked by validate().
Problem parse_problem(const Node& node) {
  node.object({"world", "batch", "heads", "kv_heads", "head_dim", "value_dim", "dtype",
               "return_lse", "wire", "layout", "mask"});
  const Node name = node["layout"];
  const Layout layout = name.checked([&] { return parse_layout(name.text()); });
  Problem problem{.world = node["world"].integer<int>(),
                  .batch = node["batch"].integer<std::int64_t>(),
                  .heads = node["heads"].integer<int>(),
                  .kv_heads = node["kv_heads"].integer<int>(),
                  .head_dim = node["head_dim"].integer<int>(),
                  .value_dim = node["value_dim"].integer<int>(),
                  .dtype = node["dtype"].name_of(kDtypes),
                  .mask = parse_mask(node["mask"]),
                  .layout = layout,
                  .return_lse = node["return_lse"].boolean(),
                  .transfer_dtype = node["wire"].name_of(kTransferDtypes)};
  node.checked([&] { validate(problem); });
  return problem;
}

Run parse_run(const Node& node) {
  node.object({"begin", "count", "step", "width"});
  return {node["begin"].integer<std::int64_t>(), node["count"].integer<std::int64_t>(),
          node["step"].integer<std::int64_t>(), node["width"].integer<std::int64_t>()};
}

Block parse_block(const Node& node) {
  node.object({"owner", "runs"});
  return {node["owner"].integer<Rank>(), node["runs"].list(parse_run)};
}

}  // namespace

std::string to_json(const Problem& problem) {
  return json_text(json_of(problem));
}

std::string to_json(const Plan& plan) {
  Json ranks = Json::array();
  for (const RankProgram& program : plan.ranks) ranks.push_back(json_of(program));
  const Json json{{"format_version", kJsonFormatVersion},
                  {"strategy", plan.strategy},
                  {"pass", to_string(plan.pass)},
                  {"problem", json_of(plan.problem)},
                  {"blocks", {{"q", to_json(plan.blocks.q)}, {"kv", to_json(plan.blocks.kv)}}},
                  {"ranks", std::move(ranks)}};
  return json_text(json);
}

// The version is looked at first: another version may have other keys.
Plan parse_json(std::string_view text) {
  const Json json = parse_syntax(text, "a plan as to_json writes it");
  const Node root(json, "");
  root.object({"format_version", "strategy", "pass", "problem", "blocks", "ranks"});
  const Node version = root["format_version"];
  if (version.integer<int>() != kJsonFormatVersion) version.refuse("{}", kJsonFormatVersion);
  const Node blocks = root["blocks"].object({"q", "kv"});
  return {.problem = parse_problem(root["problem"]),
          .strategy = root["strategy"].text(),
          .pass = root["pass"].name_of(kPasses),
          .blocks = {blocks["q"].list(parse_block), blocks["kv"].list(parse_block)},
          .ranks = root["ranks"].list(
              [](const Node& node) { return parse_program(node, attention_words()); })};
}

}  // namespace armillary::plan
