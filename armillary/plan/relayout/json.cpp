// json.cpp: programs are written and read by program/program_json.h, the shape here.
#include "armillary/plan/relayout/json.h"

#include <array>
#include <utility>

#include "armillary/plan/program/program_json.h"

namespace armillary::plan::relayout {
namespace {

constexpr std::array kCacheDtypes{Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F16};

Json json_of(const CacheLayout& layout) {
  Json extents = Json::array();
  for (const CacheExtent& extent : layout.extents) {
    extents.push_back({{"tokens", extent.tokens},
                       {"layout", plan::to_string(extent.layout)},
                       {"skipped", extent.skipped},
                       {"behind", extent.behind}});
  }
  return {{"ranks", layout.ranks},
          {"first", layout.first},
          {"head_groups", layout.head_groups},
          {"stages", layout.stages},
          {"extents", std::move(extents)}};
}

Json json_of(const CacheShape& cache) {
  return {{"layers", cache.layers},
          {"kv_heads", cache.kv_heads},
          {"head_dim", cache.head_dim},
          {"value_dim", cache.value_dim},
          {"dtype", plan::to_string(cache.dtype)}};
}

CacheExtent parse_extent(const Node& node) {
  node.object({"tokens", "layout", "skipped", "behind"});
  const Node name = node["layout"];
  return {.tokens = node["tokens"].integer<std::int64_t>(),
          .layout = name.checked([&] { return parse_layout(name.text()); }),
          .skipped = node["skipped"].integer<std::int64_t>(),
          .behind = node["behind"].integer<std::int64_t>()};
}

CacheLayout parse_cache_layout(const Node& node) {
  node.object({"ranks", "first", "head_groups", "stages", "extents"});
  return {.extents = node["extents"].list(parse_extent),
          .ranks = node["ranks"].integer<int>(),
          .first = node["first"].integer<Rank>(),
          .head_groups = node["head_groups"].integer<int>(),
          .stages = node["stages"].integer<int>()};
}

CacheShape parse_cache(const Node& node) {
  node.object({"layers", "kv_heads", "head_dim", "value_dim", "dtype"});
  return {.layers = node["layers"].integer<int>(),
          .kv_heads = node["kv_heads"].integer<int>(),
          .head_dim = node["head_dim"].integer<int>(),
          .value_dim = node["value_dim"].integer<int>(),
          .dtype = node["dtype"].name_of(kCacheDtypes)};
}

}  // namespace

std::string to_json(const RelayoutText& relayout) {
  Json ranks = Json::array();
  for (const RankProgram& program : relayout.ranks) ranks.push_back(plan::json_of(program));
  const Json json{
      {"format_version", kRelayoutFormatVersion}, {"world", relayout.shape.world},
      {"cache", json_of(relayout.shape.cache)},   {"from", json_of(relayout.shape.from)},
      {"to", json_of(relayout.shape.to)},         {"ranks", std::move(ranks)}};
  return json_text(json);
}

// The version is looked at first: another version may have other keys.
RelayoutText parse_json(std::string_view text) {
  const Json json = parse_syntax(text, "a relayout as to_json writes it");
  const Node root(json, "");
  root.object({"format_version", "world", "cache", "from", "to", "ranks"});
  const Node version = root["format_version"];
  if (version.integer<int>() != kRelayoutFormatVersion) {
    version.refuse("{}", kRelayoutFormatVersion);
  }
  RelayoutShape shape{.cache = parse_cache(root["cache"]),
                      .from = parse_cache_layout(root["from"]),
                      .to = parse_cache_layout(root["to"]),
                      .world = root["world"].integer<int>()};
  root["world"].checked([&] { check_shape(shape); });
  return {.shape = std::move(shape), .ranks = root["ranks"].list([](const Node& node) {
            return parse_program(node, relayout_words());
          })};
}

}  // namespace armillary::plan::relayout
