#include "armillary/predict/cost/known_models.h"

#include <array>
#include <cstdint>
#include <limits>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"

namespace armillary::cost {
namespace {

struct NamedShape : ModelShape {
  std::string name;
};

/// Shapes that their authors published.
const std::vector<NamedShape>& known_models() {
  static const std::vector<NamedShape> models{
      {{32, 4096, 32, 32, 128, 11008, 32000, true}, "llama2-7b"},
      {{32, 4096, 32, 8, 128, 14336, 128256, true}, "llama3-8b"},
      {{80, 8192, 64, 8, 128, 28672, 128256, true}, "llama3-70b"},
      {{126, 16384, 128, 8, 128, 53248, 128256, true}, "llama3-405b"},
      {{32, 2560, 32, 32, 80, 10240, 50257, false}, "gpt3-2.7b"},
      {{40, 5120, 40, 40, 128, 20480, 50257, false}, "gpt3-13b"},
      {{96, 12288, 96, 96, 128, 49152, 50257, false}, "gpt3-175b"}};
  return models;
}

/// Tokens whose logits exist at once.
constexpr std::int64_t kLossTokens = 1024;

}  // namespace

ModelShape parse_shape(std::string_view text) {
  for (const NamedShape& model : known_models()) {
    if (model.name == text) return model;
  }
  if (text.find('=') == std::string_view::npos) {
    const std::string nearest = nearest_name(text, model_names());
    fail<InvalidArgument>(
        "model: {} is not known; {}, or layers=L,hidden=E,heads=H,ffn=F,vocab=V is required{}",
        quote(text), list_names(model_names()), nearest.empty() ? "" : "; nearest: " + nearest);
  }
  const Arguments arguments(
      "model", text,
      {"layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated"});
  arguments.refuse_values();
  // Only KV heads and the head dim have a usual value.
  const auto number = [&](std::string_view key) {
    return static_cast<int>(arguments.integer(key, {1, std::numeric_limits<int>::max()}));
  };
  ModelShape model;
  model.layers = number("layers");
  model.hidden = number("hidden");
  model.heads = number("heads");
  model.ffn = number("ffn");
  model.vocab = number("vocab");
  model.kv_heads = arguments.find("kv_heads") ? number("kv_heads") : model.heads;
  if (!arguments.find("head_dim") && model.hidden % model.heads != 0) {
    const std::int64_t heads = model.heads;
    const std::int64_t nearest =
        std::max<std::int64_t>(1, (model.hidden + heads / 2) / heads) * heads;
    fail<InvalidArgument>(
        "model: hidden={} and heads={} given without head_dim; a multiple of the heads, or "
        "head_dim, "
        "is required; nearest: hidden={}",
        model.hidden, model.heads, nearest);
  }
  model.head_dim = arguments.find("head_dim") ? number("head_dim") : model.hidden / model.heads;
  if (const auto gated = arguments.find("gated")) {
    constexpr std::array<std::string_view, 2> kBooleans{"true", "false"};
    model.gated = parse_choice("model: gated", *gated, kBooleans) == 0;
  }
  return model;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const NamedShape& model : known_models()) names.push_back(model.name);
  return names;
}

ModelCost parse_model(std::string_view text, StepKind kind, int text_tokens) {
  const ModelShape shape = parse_shape(text);
  ModelCost model = kind == StepKind::Dit ? dit_cost_of(shape, text_tokens) : cost_of(shape);
  model.loss_chunk_tokens = kLossTokens;
  model.bytes.last = model.bytes.input;
  return model;
}

}  // namespace armillary::cost
