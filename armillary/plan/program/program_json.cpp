// Programs to and from JSON. Writing: one to_json() for each struct of program.h. Reading: one
// parse function for each struct takes its fields from a Node. Names are those of the vocabulary.
#include "armillary/plan/program/program_json.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace armillary::plan {
namespace {

constexpr std::array kCollectives{Collective::AllGather, Collective::ReduceScatter,
                                  Collective::AllToAll};

std::string init_key(const Vocabulary& words, std::size_t side) {
  return fmt::format("init_{}", words.sides[side].name);
}

/// True if the ops of this kind have a peer: another rank, or a group.
bool has_peer(const Vocabulary& words, const Op& op) {
  return op.is_comm() || words[op.kind].joint;
}
/// True if programs have groups.
bool has_groups(const Vocabulary& words) {
  return std::ranges::any_of(words.kinds, &KindWord::joint);
}

/// The word of a table that this string is the name of.
template <class Number, class Table>
Number word_at(const Node& node, const Table& table) {
  std::vector<std::string> names;
  for (const auto& word : table) names.emplace_back(word.name);
  return Number(static_cast<std::uint8_t>(node.place_in(names)));
}

Json to_json(const Heads& heads) {
  return Json::array({heads.begin, heads.end});
}
Json to_json(const Vocabulary& words, const Tile& tile) {
  return {{"tensor", words[tile.tensor].name},
          {"partial", tile.partial},
          {"heads", to_json(tile.heads)},
          {"blocks", tile.blocks},
          {"slot", tile.slot},
          {"narrow", tile.narrow}};
}

/// Fields that most ops do not have are left out; views are written under the names of their
/// operands.
Json to_json(const Vocabulary& words, const Op& op) {
  Json json{{"op", words[op.kind].name}, {"lane", op.lane}, {"step", op.step}};
  if (has_peer(words, op)) json["peer"] = op.peer;
  if (op.collective != Collective::None) json["collective"] = to_string(op.collective);
  for (std::size_t side = 0; side < words.sides.size(); ++side) {
    if (op.init[side]) json[init_key(words, side)] = true;
  }
  if (op.zero_copy) json["zero_copy"] = true;
  ARMILLARY_CHECK(words.takes(op.kind, op.views.size()));
  Json views = Json::object();
  for (std::size_t i = 0; i < op.views.size(); ++i) {
    const View& view = op.views[i];
    views[words.operand_name(op.kind, i)] = {
        {"tile", view.tile}, {"heads", to_json(view.heads)}, {"blocks", view.blocks}};
  }
  json["operands"] = std::move(views);
  return json;
}

Heads parse_heads(const Node& node) {
  const auto [begin, end] = node.range<int>();
  return {begin, end};
}

Slot parse_slot(const Node& node) {
  node.object({"bytes", "external"});
  return {node["bytes"].integer<std::int64_t>(), node["external"].boolean()};
}

/// Numbers of a tile, a view or an op are any that fit their type: indices and shapes are checked
/// by verify, not here.
Tile parse_tile(const Node& node, const Vocabulary& words) {
  node.object({"tensor", "partial", "heads", "blocks", "slot", "narrow"});
  return {word_at<TensorId>(node["tensor"], words.tensors),
          node["partial"].boolean(),
          parse_heads(node["heads"]),
          node["blocks"].integers(),
          node["slot"].integer<int>(),
          node["narrow"].boolean()};
}

View parse_view(const Node& node) {
  node.object({"tile", "heads", "blocks"});
  return {node["tile"].integer<int>(), parse_heads(node["heads"]), node["blocks"].integers()};
}

/// The operands are read last: which keys they have follows from the kind of the op.
Op parse_op(const Node& node, const Vocabulary& words) {
  std::vector<std::string> keys{"op", "lane", "step", "peer", "collective"};
  for (std::size_t side = 0; side < words.sides.size(); ++side) {
    keys.push_back(init_key(words, side));
  }
  keys.insert(keys.end(), {"zero_copy", "operands"});
  node.object(keys);
  Op op;
  op.kind = word_at<Kind>(node["op"], words.kinds);
  op.lane = node["lane"].integer<Lane>();
  op.step = node["step"].integer<int>();
  if (has_peer(words, op)) {
    op.peer = node["peer"].integer<Rank>();
  } else if (node.has("peer")) {
    node["peer"].refuse("no peer for {}", words[op.kind].name);
  }
  if (node.has("collective")) op.collective = node["collective"].name_of(kCollectives);
  for (std::size_t side = 0; side < words.sides.size(); ++side) {
    const std::string key = init_key(words, side);
    if (node.has(key)) op.init[side] = node[key].boolean();
  }
  if (node.has("zero_copy")) op.zero_copy = node["zero_copy"].boolean();
  // A message has as many views as there are keys, at least one: src, src1, src2 ..
  const Node operands = node["operands"];
  const std::size_t count = words[op.kind].operands.size();
  std::vector<std::string> names;
  for (std::size_t v = 0; v < count || (op.is_comm() && v < operands.size()); ++v) {
    names.push_back(words.operand_name(op.kind, v));
  }
  const Node& views = operands.object(names);
  for (const std::string& name : names) op.views.push_back(parse_view(views[name]));
  return op;
}

}  // namespace

Json json_of(const RankProgram& program) {
  const Vocabulary& words = *program.words;
  Json slots = Json::array();
  Json tiles = Json::array();
  Json ops = Json::array();
  for (const Slot& slot : program.slots) {
    slots.push_back({{"bytes", slot.bytes}, {"external", slot.external}});
  }
  for (const Tile& tile : program.tiles) tiles.push_back(to_json(words, tile));
  for (const Op& op : program.ops) ops.push_back(to_json(words, op));
  Json json{{"rank", program.rank},     {"slots", std::move(slots)},  {"tiles", std::move(tiles)},
            {"inputs", program.inputs}, {"outputs", program.outputs}, {"saved", program.saved}};
  if (has_groups(words)) json["groups"] = program.groups;
  json["ops"] = std::move(ops);
  return json;
}

/// The rank is not compared with the place in the list: that is a rule of verify, too.
RankProgram parse_program(const Node& node, const Vocabulary& words) {
  std::vector<std::string> keys{"rank", "slots", "tiles", "inputs", "outputs", "saved"};
  if (has_groups(words)) keys.emplace_back("groups");
  keys.emplace_back("ops");
  node.object(keys);
  std::vector<std::vector<Rank>> groups;
  if (has_groups(words)) groups = node["groups"].list(std::mem_fn(&Node::integers));
  return {.words = &words,
          .rank = node["rank"].integer<Rank>(),
          .slots = node["slots"].list(parse_slot),
          .tiles = node["tiles"].list([&](const Node& tile) { return parse_tile(tile, words); }),
          .ops = node["ops"].list([&](const Node& op) { return parse_op(op, words); }),
          .inputs = node["inputs"].integers(),
          .outputs = node["outputs"].integers(),
          .saved = node["saved"].integers(),
          .groups = std::move(groups)};
}

/// The text as JSON, no deeper than a plan is.
Json parse_syntax(std::string_view text, std::string_view required) {
  JsonRead read = read_json_text(text, /*most_depth=*/16);
  if (read.fault) {
    fail<InvalidArgument>("parse_json: the text {}; {} is required", to_string(*read.fault),
                          required);
  }
  return std::move(read.value);
}

std::string to_json(const RankProgram& program) {
  return json_text(json_of(program));
}

RankProgram parse_program_json(std::string_view text, const Vocabulary& words) {
  return parse_program(Node(parse_syntax(text, "a program as to_json writes it"), ""), words);
}

}  // namespace armillary::plan
