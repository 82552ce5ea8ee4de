// Plans to and from JSON with nlohmann::json. Writing: one to_json() for each struct of plan.h.
// Reading: parse_syntax() reads the text as such; then one parse function for each struct takes its
// fields from a Node, which knows the way to its value, so that every error names the place.
#include "armillary/plan/json.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::plan {
namespace {

using Json = nlohmann::ordered_json;  // Keys in the order they are written: for human readers.

// All values of the enums, for reading: a name is looked up among the names of these.
constexpr std::array kDtypes{Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F16};
constexpr std::array kWires{Wire::Accumulator, Wire::Input};
constexpr std::array kPasses{Pass::Forward, Pass::Backward, Pass::Replay};
constexpr std::array kTensors{Tensor::Q,    Tensor::K,     Tensor::V,  Tensor::Out, Tensor::Lse,
                              Tensor::DOut, Tensor::Delta, Tensor::DQ, Tensor::DK,  Tensor::DV};
constexpr std::array kOpKinds{OpKind::Send,       OpKind::Recv,      OpKind::Attend,
                              OpKind::AttendGrad, OpKind::Merge,     OpKind::Add,
                              OpKind::Copy,       OpKind::Clear,     OpKind::Delta,
                              OpKind::Finish,     OpKind::AttendAll, OpKind::AttendGradAll};
constexpr std::array kCollectives{Collective::AllGather, Collective::ReduceScatter,
                                  Collective::AllToAll};

// ---- writing

Json to_json(const Heads& heads) {
  return Json::array({heads.begin, heads.end});
}
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
          {"wire", to_string(problem.wire)},
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

Json to_json(const Tile& tile) {
  return {{"tensor", to_string(tile.tensor)},
          {"partial", tile.partial},
          {"heads", to_json(tile.heads)},
          {"blocks", tile.blocks},
          {"slot", tile.slot},
          {"narrow", tile.narrow}};
}

/// Fields that most ops do not have are left out; views are written under the names of their
/// operands.
Json to_json(const Op& op) {
  Json json{{"op", to_string(op.kind)}, {"lane", op.lane}, {"step", op.step}};
  if (op.is_comm()) json["peer"] = op.peer;
  if (op.collective != Collective::None) json["collective"] = to_string(op.collective);
  if (op.init_q) json["init_q"] = true;
  if (op.init_kv) json["init_kv"] = true;
  if (op.zero_copy) json["zero_copy"] = true;
  ARMILLARY_CHECK(takes(op.kind, op.views.size()));
  Json views = Json::object();
  for (std::size_t i = 0; i < op.views.size(); ++i) {
    const View& view = op.views[i];
    views[operand_name(op.kind, i)] = {
        {"tile", view.tile}, {"heads", to_json(view.heads)}, {"blocks", view.blocks}};
  }
  json["operands"] = std::move(views);
  return json;
}

Json to_json(const RankProgram& program) {
  Json slots = Json::array();
  Json tiles = Json::array();
  Json ops = Json::array();
  for (const Slot& slot : program.slots) {
    slots.push_back({{"bytes", slot.bytes}, {"external", slot.external}});
  }
  for (const Tile& tile : program.tiles) tiles.push_back(to_json(tile));
  for (const Op& op : program.ops) ops.push_back(to_json(op));
  return {{"rank", program.rank},     {"slots", std::move(slots)},  {"tiles", std::move(tiles)},
          {"inputs", program.inputs}, {"outputs", program.outputs}, {"saved", program.saved},
          {"ops", std::move(ops)}};
}

// ---- reading

/// A JSON value and the path to it: `ranks[0].ops[3].lane`. Every accessor checks the type of the
/// value and throws InvalidArgument with the path if it is another one.
class Node {
 public:
  Node(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  /// Throws: the path, the value (shortened), and what is required instead.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> required, Args&&... args) const {
    fail<InvalidArgument>("parse_json: {} is {}; {} is required",
                          path_.empty() ? "the text" : path_, shorten(json_text(json_), 40),
                          fmt::format(required, std::forward<Args>(args)...));
  }

  /// Checks that this is an object with known keys only; the error names the nearest known key.
  const Node& object(const std::vector<std::string>& keys) const {
    if (!json_.is_object()) refuse("an object");
    for (const auto& [key, value] : json_.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      const std::string nearest = nearest_name(key, keys);
      fail<InvalidArgument>("parse_json: {} is not a known key; {} is required{}", path_to(key),
                            list_names(keys),
                            nearest.empty() ? "" : "; nearest: '" + nearest + "'");
    }
    return *this;
  }

  bool has(const char* key) const { return json_.contains(key); }

  /// The value of a key, which must be there.
  Node operator[](std::string_view key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) {
      fail<InvalidArgument>("parse_json: {} is missing; this key is required", path_to(key));
    }
    return {*found, path_to(key)};
  }

  /// An integer that fits T. The library would truncate fractions and wrap integers of 2^63 and
  /// more, so both are refused first.
  template <class T>
  T integer() const {
    const bool too_large =
        json_.is_number_unsigned() &&
        json_.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    const auto value = json_.is_number_integer() && !too_large ? json_.get<std::int64_t>() : 0;
    if (!json_.is_number_integer() || too_large || value < std::numeric_limits<T>::min() ||
        value > std::numeric_limits<T>::max()) {
      refuse("an integer of {} bits", 8 * sizeof(T));
    }
    return static_cast<T>(value);
  }

  /// Elements of an array, keys of an object.
  std::size_t size() const { return json_.size(); }

  bool boolean() const {
    if (!json_.is_boolean()) refuse("true or false");
    return json_.get<bool>();
  }

  std::string text() const {
    if (!json_.is_string()) refuse("a string");
    return json_.get<std::string>();
  }

  /// An array, each element read by `read`.
  template <class Read>
  auto list(Read read) const {
    if (!json_.is_array()) refuse("an array");
    // Each element is a Node of its own, with its index in the path.
    std::vector<decltype(read(*this))> values;
    values.reserve(json_.size());
    for (std::size_t i = 0; i < json_.size(); ++i) {
      values.push_back(read(Node(json_[i], fmt::format("{}[{}]", path_, i))));
    }
    return values;
  }

  std::vector<int> integers() const {
    return list([](const Node& node) { return node.integer<int>(); });
  }

  /// An array of two integers.
  template <class T>
  std::pair<T, T> range() const {
    if (!json_.is_array() || json_.size() != 2) refuse("an array of begin and end");
    const auto ends = list([](const Node& node) { return node.integer<T>(); });
    return {ends[0], ends[1]};
  }

  /// The one of `values` whose name this string is.
  template <class Values>
  auto name_of(const Values& values) const {
    const std::string name = text();
    std::vector<std::string> names;
    for (const auto value : values) {
      if (to_string(value) == name) return value;
      names.emplace_back(to_string(value));
    }
    refuse("{}", list_names(names));
  }

  /// The result of `make`. If it throws InvalidArgument, the path is put before its text.
  template <class Make>
  auto checked(Make make) const {
    try {
      return make();
    } catch (const InvalidArgument& error) {
      fail<InvalidArgument>("parse_json: {}: {}", path_, error.what());
    }
  }

 private:
  std::string path_to(std::string_view key) const {
    const std::string name = shorten(printable(key), kMostQuotedBytes);
    return path_.empty() ? name : fmt::format("{}.{}", path_, name);
  }

  const Json& json_;
  std::string path_;
};

Heads parse_heads(const Node& node) {
  const auto [begin, end] = node.range<int>();
  return {begin, end};
}

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
                  .wire = node["wire"].name_of(kWires)};
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

Slot parse_slot(const Node& node) {
  node.object({"bytes", "external"});
  return {node["bytes"].integer<std::int64_t>(), node["external"].boolean()};
}

/// Numbers of a tile, a view or an op are any that fit their type: indices and shapes are checked
/// by verify, not here.
Tile parse_tile(const Node& node) {
  node.object({"tensor", "partial", "heads", "blocks", "slot", "narrow"});
  return {node["tensor"].name_of(kTensors), node["partial"].boolean(),   parse_heads(node["heads"]),
          node["blocks"].integers(),        node["slot"].integer<int>(), node["narrow"].boolean()};
}

View parse_view(const Node& node) {
  node.object({"tile", "heads", "blocks"});
  return {node["tile"].integer<int>(), parse_heads(node["heads"]), node["blocks"].integers()};
}

/// The operands are read last: which keys they have follows from the kind of the op.
Op parse_op(const Node& node) {
  node.object(
      {"op", "lane", "step", "peer", "collective", "init_q", "init_kv", "zero_copy", "operands"});
  Op op;
  op.kind = node["op"].name_of(kOpKinds);
  op.lane = node["lane"].integer<Lane>();
  op.step = node["step"].integer<int>();
  if (op.is_comm()) {
    op.peer = node["peer"].integer<Rank>();
  } else if (node.has("peer")) {
    node["peer"].refuse("no peer for {}", to_string(op.kind));
  }
  if (node.has("collective")) op.collective = node["collective"].name_of(kCollectives);
  if (node.has("init_q")) op.init_q = node["init_q"].boolean();
  if (node.has("init_kv")) op.init_kv = node["init_kv"].boolean();
  if (node.has("zero_copy")) op.zero_copy = node["zero_copy"].boolean();
  // A message has as many views as there are keys, at least one: src, src1, src2 ..
  const Node given = node["operands"];
  const std::size_t named = operands(op.kind).size();
  std::vector<std::string> names;
  for (std::size_t v = 0; v < named || (op.is_comm() && v < given.size()); ++v) {
    names.push_back(operand_name(op.kind, v));
  }
  const Node& views = given.object(names);
  for (const std::string& name : names) op.views.push_back(parse_view(views[name]));
  return op;
}

/// The rank is not compared with the place in the list: that is a rule of verify, too.
RankProgram parse_program(const Node& node) {
  node.object({"rank", "slots", "tiles", "inputs", "outputs", "saved", "ops"});
  return {.rank = node["rank"].integer<Rank>(),
          .slots = node["slots"].list(parse_slot),
          .tiles = node["tiles"].list(parse_tile),
          .ops = node["ops"].list(parse_op),
          .inputs = node["inputs"].integers(),
          .outputs = node["outputs"].integers(),
          .saved = node["saved"].integers()};
}

/// The text as JSON, no deeper than a plan is.
Json parse_syntax(std::string_view text) {
  JsonRead read = read_json_text(text, /*most_depth=*/16);
  if (read.fault) {
    fail<InvalidArgument>("parse_json: the text {}; a plan as to_json writes it is required",
                          to_string(*read.fault));
  }
  return std::move(read.value);
}

}  // namespace

std::string to_json(const Problem& problem) {
  return json_text(json_of(problem));
}

std::string to_json(const Plan& plan) {
  Json ranks = Json::array();
  for (const RankProgram& program : plan.ranks) ranks.push_back(to_json(program));
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
  const Json json = parse_syntax(text);
  const Node root(json, "");
  root.object({"format_version", "strategy", "pass", "problem", "blocks", "ranks"});
  const Node version = root["format_version"];
  if (version.integer<int>() != kJsonFormatVersion) version.refuse("{}", kJsonFormatVersion);
  const Node blocks = root["blocks"].object({"q", "kv"});
  return {.problem = parse_problem(root["problem"]),
          .strategy = root["strategy"].text(),
          .pass = root["pass"].name_of(kPasses),
          .blocks = {blocks["q"].list(parse_block), blocks["kv"].list(parse_block)},
          .ranks = root["ranks"].list(parse_program)};
}

}  // namespace armillary::plan
