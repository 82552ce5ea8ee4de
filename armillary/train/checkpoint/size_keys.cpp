#include "armillary/train/checkpoint/size_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

namespace armillary::train {
namespace {

/// The last part of a parameter's name, and the keys of its dims; the second is empty if it has
/// one.
struct SizeRow {
  std::string_view part, first, second = {};
};
constexpr std::array kSizeRows{SizeRow{"tok_embeddings", "vocab_size", "dim"},
                               SizeRow{"pos_embeddings", "max_seq_len", "dim"},
                               SizeRow{"output", "vocab_size", "dim"},
                               SizeRow{"wq", "n_heads", "dim"},
                               SizeRow{"wk", "n_kv_heads", "dim"},
                               SizeRow{"wv", "n_kv_heads", "dim"},
                               SizeRow{"wo", "dim", "n_heads"},
                               SizeRow{"q_norm", "head_dim"},
                               SizeRow{"k_norm", "head_dim"},
                               SizeRow{"w1", "hidden_dim", "dim"},
                               SizeRow{"w2", "dim", "hidden_dim"},
                               SizeRow{"w3", "hidden_dim", "dim"},
                               SizeRow{"gate", "num_experts", "dim"},
                               SizeRow{"expert_bias", "num_experts"},
                               SizeRow{"attention_norm", "dim"},
                               SizeRow{"ffn_norm", "dim"},
                               SizeRow{"norm", "dim"}};

/// Keys of a size that a row names by one of them.
std::vector<std::string_view> all_keys(const model::ModelOptions& model, std::string_view key,
                                       std::string_view parameter) {
  const bool has_head_dim = model.head_dim > 0;
  if (key == "n_heads" && has_head_dim) return {key, "head_dim"};
  if (key == "n_kv_heads") return {key, has_head_dim ? "head_dim" : "n_heads"};
  if (key == "head_dim" && !has_head_dim) return {"dim", "n_heads"};
  if (key != "hidden_dim" || parameter.find(".moe.") == std::string_view::npos) return {key};
  if (parameter.find(".shared_experts.") == std::string_view::npos) return {"moe_inter_dim"};
  return {"num_shared_experts", "moe_inter_dim"};
}

}  // namespace

std::vector<std::vector<std::string_view>> size_keys(const model::ModelOptions& model,
                                                     const std::string& parameter) {
  if (model.name == "dit") return {};  // some of its parts have these names and other shapes
  std::string_view name = parameter;
  for (const std::string_view kind : {".weight", ".bias"}) {
    if (name.ends_with(kind)) name.remove_suffix(kind.size());
  }
  const std::size_t dot = name.rfind('.');
  const auto* const row = std::ranges::find(
      kSizeRows, dot == std::string_view::npos ? name : name.substr(dot + 1), &SizeRow::part);
  if (row == kSizeRows.end()) return {};
  std::vector<std::vector<std::string_view>> keys;
  if (parameter.find(".moe.experts.") != std::string::npos) keys.push_back({"num_experts"});
  keys.push_back(all_keys(model, row->first, parameter));
  if (!row->second.empty()) keys.push_back(all_keys(model, row->second, parameter));
  return keys;
}

std::string differing_keys(const model::Shape& shape, const model::Shape& required,
                           const std::vector<std::vector<std::string_view>>& keys,
                           const std::function<std::string(std::string_view key)>& name_in_file) {
  if (shape.size() != required.size() || keys.size() < shape.size()) return "";
  std::vector<std::string> names;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == required[dim]) continue;
    std::ranges::transform(keys[dim], std::back_inserter(names), name_in_file);
  }
  return names.empty() ? "" : fmt::format(" ({})", fmt::join(names, ", "));
}

}  // namespace armillary::train
