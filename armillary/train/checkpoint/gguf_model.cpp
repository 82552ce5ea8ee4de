// gguf_model.cpp: the reader of keys marks what it looks at, as that of hf_config.cpp. Rows of Q
// and K are moved one by one, so a part of a matrix needs no more than itself.
#include "armillary/train/checkpoint/gguf_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/section.h"
#include "armillary/core/user_text.h"
#include "armillary/model/registry.h"
#include "armillary/model/rope_scaling.h"
#include "armillary/train/checkpoint/model_config.h"
#include "armillary/train/checkpoint/size_keys.h"

namespace armillary::train {
namespace {

constexpr const char* kArchitectureKey = "general.architecture";
constexpr const char* kFrequencies = "rope_freqs.weight";

/// Part of our name, and the same part in files; the first that fits counts.
constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kGgufNames{{
    {"tok_embeddings", "token_embd"},
    {"output", "output"},
    {"attention.wq", "attn_q"},
    {"attention.wk", "attn_k"},
    {"attention.wv", "attn_v"},
    {"attention.wo", "attn_output"},
    {"attention.q_norm", "attn_q_norm"},
    {"attention.k_norm", "attn_k_norm"},
    {"feed_forward.w1", "ffn_gate"},
    {"feed_forward.w3", "ffn_up"},
    {"feed_forward.w2", "ffn_down"},
    {"attention_norm", "attn_norm"},
    {"ffn_norm", "ffn_norm"},
    {"norm", "output_norm"},
}};

/// The number that was written in decimal before it became an fp32: 1e-5, not 9.99999975e-06.
double decimal_of(double value) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  const std::string text = fmt::format("{}", narrow);
  double decimal = value;
  std::from_chars(text.data(), text.data() + text.size(), decimal);
  return decimal;
}

/// Metadata on its way to options.
class GgufModelReader {
 public:
  explicit GgufModelReader(const io::GgufFile& file) : file_(file) {}

  model::ModelOptions read() {
    architecture_ = read_architecture();
    model::ModelOptions model = model::default_options("llama");
    model.qkv_bias = architecture_ == "qwen2";
    model.qk_norm = architecture_ == "qwen3";
    model.n_layers = size("block_count");
    model.dim = size("embedding_length");
    model.hidden_dim = size("feed_forward_length");
    model.n_heads = size("attention.head_count");
    model.n_kv_heads = size("attention.head_count_kv", model.n_heads);
    read_head_dim(model);
    model.norm_eps = number("attention.layer_norm_rms_epsilon");
    model.rope_theta = number("rope.freq_base", 10000);
    model.rope_scaling = model::to_string(read_scaling());
    read_vocabulary(model);
    model.enable_weight_tying = file_.find("output.weight") == nullptr;
    // Experts of these files are not read; the length of the first training changes nothing.
    require_none("expert_count");
    require_none("expert_used_count");
    value("context_length");
    refuse_others();
    return model;
  }

 private:
  /// The value of a key of the architecture; null if it is not there.
  const io::GgufValue* value(const std::string& key) {
    const std::string whole = architecture_ + "." + key;
    seen_.insert(whole);
    const auto entry = file_.metadata().find(whole);
    return entry == file_.metadata().end() ? nullptr : &entry->second;
  }

  [[noreturn]] void refuse(const std::string& whole_key, const std::string& required) const {
    const auto entry = file_.metadata().find(whole_key);
    if (entry == file_.metadata().end()) {
      fail<InvalidArgument>("model: {} has no {}; {} is required", excerpt(file_.path()), whole_key,
                            required);
    }
    fail<InvalidArgument>("model: {} has {} = {}; {} is required", excerpt(file_.path()), whole_key,
                          io::value_text(entry->second), required);
  }

  std::string read_architecture() const {
    const std::vector<std::string> names{"llama", "qwen2", "qwen3"};
    const auto entry = file_.metadata().find(kArchitectureKey);
    const auto* const name =
        entry == file_.metadata().end() ? nullptr : std::get_if<std::string>(&entry->second);
    if (name == nullptr || std::ranges::find(names, *name) == names.end()) {
      refuse(kArchitectureKey, list_names(names));
    }
    return *name;
  }

  /// A whole number from 1 on; without `otherwise` it must be there.
  std::int64_t size(const std::string& key, std::optional<std::int64_t> otherwise = {}) {
    const io::GgufValue* const entry = value(key);
    if (entry == nullptr && otherwise) return *otherwise;
    const auto* const number = entry == nullptr ? nullptr : std::get_if<std::uint64_t>(entry);
    if (number == nullptr || *number < 1 || *number > static_cast<std::uint64_t>(kMaxSize)) {
      refuse(architecture_ + "." + key, fmt::format("a whole number from 1 to {}", kMaxSize));
    }
    return static_cast<std::int64_t>(*number);
  }

  double number(const std::string& key, std::optional<double> otherwise = {}) {
    const io::GgufValue* const entry = value(key);
    if (entry == nullptr && otherwise) return *otherwise;
    const auto* const number = entry == nullptr ? nullptr : std::get_if<double>(entry);
    if (number == nullptr || !(*number > 0)) refuse(architecture_ + "." + key, "a number above 0");
    return decimal_of(*number);
  }

  void require_none(const std::string& key) {
    const io::GgufValue* const entry = value(key);
    const auto* const number = entry == nullptr ? nullptr : std::get_if<std::uint64_t>(entry);
    if (entry == nullptr || (number != nullptr && *number == 0)) return;
    refuse(architecture_ + "." + key, "0");
  }

  /// The size of a head, which up to three keys say.
  void read_head_dim(model::ModelOptions& model) {
    const bool is_whole = model.dim % model.n_heads == 0;
    std::optional<std::int64_t> otherwise;
    if (is_whole) otherwise = model.dim / model.n_heads;
    const std::int64_t head_dim = size("attention.key_length", otherwise);
    for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
      if (size(key, head_dim) != head_dim) {
        refuse(architecture_ + "." + key, fmt::format("{}, the size of a key,", head_dim));
      }
    }
    if (!is_whole || head_dim != model.dim / model.n_heads) model.head_dim = head_dim;
  }

  /// Words are the rows of the embedding, whatever else says so too.
  void read_vocabulary(model::ModelOptions& model) {
    const io::GgufTensor* const table = file_.find("token_embd.weight");
    if (table == nullptr || table->shape.size() != 2 || table->shape[0] < 1 ||
        table->shape[0] > kMaxSize) {
      fail<InvalidArgument>(
          "model: {} has no token_embd.weight with a row for each word; one is "
          "required",
          excerpt(file_.path()));
    }
    model.vocab_size = table->shape[0];
    if (size("vocab_size", model.vocab_size) != model.vocab_size) {
      refuse(architecture_ + ".vocab_size",
             fmt::format("{}, the rows of token_embd.weight,", model.vocab_size));
    }
  }

  model::RopeScaling read_scaling() {
    model::RopeScaling scaling;
    const io::GgufValue* const entry = value("rope.scaling.type");
    const auto* const type = entry == nullptr ? nullptr : std::get_if<std::string>(entry);
    if (entry != nullptr &&
        (type == nullptr || (*type != "none" && *type != "linear" && *type != "yarn"))) {
      refuse(architecture_ + ".rope.scaling.type", "none, linear or yarn");
    }
    value("rope.scaling.finetuned");  // says how a model was made
    if (file_.find(kFrequencies) != nullptr) {
      if (type != nullptr && *type != "none") {
        refuse(architecture_ + ".rope.scaling.type", "none beside rope_freqs.weight");
      }
      return read_frequencies();
    }
    if (type == nullptr || *type == "none") return scaling;
    scaling.factor = number("rope.scaling.factor");
    scaling.kind = model::RopeKind::Linear;
    if (*type == "linear") return scaling;
    scaling.kind = model::RopeKind::Yarn;
    scaling.original = size("rope.scaling.original_context_length");
    return scaling;
  }

  /// One divisor for each pair of dims, as files of Llama 3.1 have them.
  model::RopeScaling read_frequencies() const {
    const io::GgufTensor& tensor = *file_.find(kFrequencies);
    if (tensor.shape.size() != 1 || tensor.shape[0] > kMaxSize) {
      fail<InvalidArgument>("model: {}: tensor {} has the shape [{}]; one dim is required",
                            excerpt(file_.path()), kFrequencies, fmt::join(tensor.shape, ","));
    }
    std::vector<float> divisors(static_cast<std::size_t>(tensor.shape[0]));
    file_.read(kFrequencies, 0, divisors);
    model::RopeScaling scaling{.kind = model::RopeKind::LongRope, .original = 2};
    for (const float divisor : divisors) scaling.short_factors.push_back(decimal_of(divisor));
    scaling.long_factors = scaling.short_factors;
    return scaling;
  }

  void refuse_others() const {
    for (const auto& [key, entry] : file_.metadata()) {
      const bool is_free = key.starts_with("general.") || key.starts_with("tokenizer.") ||
                           key.starts_with("quantize.");
      if (is_free || seen_.contains(key)) continue;
      fail<InvalidArgument>(
          "model: {} has {} = {}, which is not obeyed here; a file without it is required",
          excerpt(file_.path()), excerpt(key), io::value_text(entry));
    }
  }

  const io::GgufFile& file_;
  std::string architecture_;
  std::set<std::string> seen_;
};

/// The name in files of a key of [model] that is a size.
std::string gguf_size_key(const io::GgufFile& file, std::string_view key) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kKeys{
      {{"dim", "embedding_length"},
       {"hidden_dim", "feed_forward_length"},
       {"n_heads", "attention.head_count"},
       {"n_kv_heads", "attention.head_count_kv"},
       {"head_dim", "attention.key_length"}}};
  const auto* const row =
      std::ranges::find(kKeys, key, [](const auto& pair) { return pair.first; });
  if (row == kKeys.end()) return "rows of token_embd.weight";
  const auto architecture = file.metadata().find(kArchitectureKey);
  return fmt::format("{}.{}", std::get<std::string>(architecture->second), row->second);
}

/// The tensor of a parameter. @throws IoError unless it is there and of this shape.
const io::GgufTensor& tensor_with(const io::GgufFile& file, const model::ModelOptions& model,
                                  const std::string& parameter, const model::Shape& shape) {
  const std::string name = gguf_name(parameter);
  const io::GgufTensor* const tensor = file.find(name);
  if (tensor == nullptr) {
    fail<IoError>("model: {} has no tensor '{}'; all of the recipe's model are required",
                  excerpt(file.path()), name);
  }
  if (tensor->shape != shape) {
    fail<IoError>("model: {}: tensor '{}' is [{}]; [{}] is required{}", excerpt(file.path()), name,
                  fmt::join(tensor->shape, ","), fmt::join(shape, ","),
                  differing_keys(tensor->shape, shape, size_keys(model, parameter),
                                 [&](std::string_view key) { return gguf_size_key(file, key); }));
  }
  return *tensor;
}

/// The interleaved place of a row of Q or K: row i of half j of a head is row 2 i + j of the head.
std::int64_t interleaved(std::int64_t row, std::int64_t head_dim) {
  const std::int64_t inside = row % head_dim;
  const std::int64_t half = head_dim / 2;
  return row - inside + 2 * (inside % half) + inside / half;
}

}  // namespace

model::ModelOptions read_gguf_model(const io::GgufFile& file) {
  return checked_model(file.path(), GgufModelReader(file).read());
}

std::string gguf_name(const std::string& parameter) {
  // `layers.3.ffn_norm.weight`: the layer, the part of the table, the kind.
  constexpr std::string_view kLayers = "layers.";
  std::string_view rest = parameter;
  std::string name;
  if (rest.starts_with(kLayers)) {
    rest.remove_prefix(kLayers.size());
    const std::size_t dot = rest.find('.');
    name = fmt::format("blk.{}.", rest.substr(0, dot));
    rest.remove_prefix(dot + 1);
  }
  const std::size_t kind = rest.rfind('.');
  const auto* const row = std::ranges::find(kGgufNames, rest.substr(0, kind),
                                            [](const auto& pair) { return pair.first; });
  ARMILLARY_CHECK(row != kGgufNames.end());
  return name + std::string(row->second) + std::string(rest.substr(kind));
}

void expect_gguf_tensors(const io::GgufFile& file, const model::ModelOptions& model,
                         std::span<const model::Parameter> parameters) {
  std::set<std::string> names{kFrequencies};  // these are a part of the model's options
  for (const model::Parameter& parameter : parameters) {
    names.insert(tensor_with(file, model, parameter.name, parameter.shape).name);
  }
  for (const io::GgufTensor& tensor : file.tensors()) {
    if (names.contains(tensor.name)) continue;
    fail<IoError>(
        "model: {}: tensor {} is not one of the recipe's model; none but those are required",
        excerpt(file.path()), quote(tensor.name));
  }
}

void read_gguf_parameter(const io::GgufFile& file, const model::ModelOptions& model,
                         const std::string& parameter, const model::GlobalRange& range,
                         std::span<float> values) {
  const std::string& name = tensor_with(file, model, parameter, range.whole).name;
  // Qwen's Q and K are as they are.
  const bool is_interleaved = !model.qkv_bias && !model.qk_norm &&
                              (name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight"));
  const std::int64_t columns = range.whole.empty() ? 1 : range.whole.back();
  model::for_each_row(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
    if (count == 0) return;
    const std::int64_t begin =
        is_interleaved
            ? interleaved(global / columns, model.head_width()) * columns + global % columns
            : global;
    file.read(name, begin,
              values.subspan(static_cast<std::size_t>(local), static_cast<std::size_t>(count)));
  });
}

}  // namespace armillary::train
