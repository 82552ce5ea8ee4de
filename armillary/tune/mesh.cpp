// mesh.cpp: stages and microbatches around the terms of sim/step.h, and USP's table of methods.
// Shapes of known models are those that their authors published.
#include "armillary/tune/mesh.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"

namespace armillary::tune {
namespace {

struct NamedShape : sim::ModelShape {
  std::string name;
};

/// Shapes that their authors published.
const std::vector<NamedShape>& known_models() {
  static const std::vector<NamedShape> models{
      {{32, 4096, 32, 32, 128, 11008, 32000, true}, "llama2-7b"},
      {{32, 4096, 32, 8, 128, 14336, 128256, true}, "llama3-8b"},
      {{80, 8192, 64, 8, 128, 28672, 128256, true}, "llama3-70b"},
      {{32, 2560, 32, 32, 80, 10240, 50257, false}, "gpt3-2.7b"},
      {{40, 5120, 40, 40, 128, 20480, 50257, false}, "gpt3-13b"},
      {{96, 12288, 96, 96, 128, 49152, 50257, false}, "gpt3-175b"}};
  return models;
}

constexpr double kBf16 = 2;
constexpr double kGradient = 4;    // fp32
constexpr double kOptimizer = 12;  // fp32 copy and two moments
/// Tokens whose logits exist at once.
constexpr std::int64_t kLossTokens = 1024;

double sequences_of_rank(const StepShape& step, const Mesh& mesh) {
  return static_cast<double>(step.batch) / mesh.dp;
}

/// One stage of layers, with the embedding and the output matrix, which different stages have: an
/// upper bound where there are several. `sequences` is how many each replica takes.
sim::Step stage_of(const StepShape& step, const Mesh& mesh, std::int64_t sequences) {
  sim::Step stage{
      .kind = step.kind, .model = step.model, .seq = step.seq, .batch = sequences * mesh.dp};
  stage.model = stage.model.with_layers(stage.model.attention.layers / mesh.pp);
  stage.parallelism = {
      .tp = mesh.tp, .sp = mesh.cp, .dp = mesh.dp, .zero = mesh.zero, .recompute = mesh.recompute};
  return stage;
}

/// Bytes of K and V that a prefill keeps of so many sequences, which have left the stage.
double kept_keys(const StepShape& step, const Mesh& mesh, std::int64_t sequences) {
  sim::Step stage = stage_of(step, mesh, sequences);
  const double all = step_memory(stage).activations;
  stage.model = stage.model.with_layers(0);
  return all - step_memory(stage).activations;
}

/// The known model, or the shape that the text spells out.
sim::ModelShape shape_of(std::string_view text) {
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
  sim::ModelShape model;
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

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const NamedShape& model : known_models()) names.push_back(model.name);
  return names;
}

NamedModel parse_model(std::string_view text, sim::StepKind kind, int text_tokens) {
  const sim::ModelShape shape = shape_of(text);
  const bool is_dit = kind == sim::StepKind::Dit;
  NamedModel model{is_dit ? dit_cost_of(shape, text_tokens) : cost_of(shape), std::string(text)};
  model.loss_chunk_tokens = kLossTokens;
  return model;
}

MeshTime mesh_time(const StepShape& step, const Mesh& mesh, const sim::Cluster& cluster,
                   double attention_s) {
  const sim::Device& device = cluster.device;
  if (device.matmul_flops_per_s <= 0) {
    fail<InvalidArgument>(
        "advise: {} has no matmul_TFLOPs; the rate of matrix products is required", device.name);
  }
  const double sequences = sequences_of_rank(step, mesh);
  MeshTime time{.stage = step_time(stage_of(step, mesh, step.batch / mesh.dp), cluster,
                                   sequences * attention_s)};
  if (mesh.pp == 1) return time;
  // Each stage waits for the first sequence to come, and in training at the end for the last to
  // return.
  const double busy = time.stage.total() - time.stage.gradients - time.stage.optimizer;
  const double sent = static_cast<double>(step.seq) / mesh.cp * sequences *
                      static_cast<double>(step.model.bytes.input) / mesh.tp;
  const int passes = step.kind == sim::StepKind::Train ? 2 : 1;
  time.pipeline = busy * (mesh.pp - 1) / sequences +
                  passes * sent / group_bytes_per_s(cluster, mesh.pp, mesh.devices() / mesh.pp);
  return time;
}

MeshMemory mesh_memory(const StepShape& step, const Mesh& mesh, double attention_bytes) {
  // The first stage has as many microbatches under way as there are stages; of forward alone one.
  const bool trains = step.kind == sim::StepKind::Train;
  const std::int64_t under_way = trains ? std::min<std::int64_t>(mesh.pp, step.batch / mesh.dp) : 1;
  MeshMemory memory{.stage = step_memory(stage_of(step, mesh, under_way)),
                    .attention = attention_bytes};
  if (step.kind == sim::StepKind::Prefill) {
    memory.stage.activations += kept_keys(step, mesh, step.batch / mesh.dp - under_way);
  }
  if (!trains) return memory;
  // Loss and backward of a layer exist for one microbatch at a time.
  memory.stage.transient = step_memory(stage_of(step, mesh, 1)).transient;
  return memory;
}

SequenceElements sequence_elements(const StepShape& step, int cp, int u) {
  const double tokens = static_cast<double>(step.seq) * static_cast<double>(step.batch);
  const sim::ModelAttention& attention = step.model.attention;
  const double q = tokens * static_cast<double>(attention.heads * attention.head_dim);
  const double kv = tokens * static_cast<double>(std::max<std::int64_t>(attention.kv_heads, u) *
                                                 attention.head_dim);
  const int ring = cp / u;
  return {.heads = 4 * (q + kv) / cp * (u - 1) / u, .ring = 6 * kv * (ring - 1) / cp};
}

std::vector<MethodCost> method_costs(const StepShape& step, int devices) {
  const auto [layers, heads, kv_heads, head_dim] = step.model.attention;
  const double n = devices;
  const double share = (n - 1) / n;
  sim::Step layer{.model = step.model.with_layers(1), .seq = step.seq, .batch = step.batch};
  const auto p = static_cast<double>(layer.model.layer_parameters);
  const double hidden = static_cast<double>(step.seq) * static_cast<double>(step.batch) *
                        static_cast<double>(step.model.bytes.input) / kBf16;
  const double act = step_memory(layer).activations;
  // Inputs of norms and of products are whole on every device of TP; the rest is split.
  const double whole = 4 * kBf16 * hidden;
  const double unified =
      sequence_elements(step, devices, std::gcd(devices, static_cast<int>(heads))).total();
  const double params = (kBf16 + kGradient) * p;
  const double states = kOptimizer * p;
  std::vector<MethodCost> rows{
      {"SP-Ring", 2 * p * share, sequence_elements(step, devices, 1).total(), params, states,
       act / n},
      {"DP", 2 * p * share, 0, params, states, act / n},
      {"DP + ZeRO-1", 2 * p * share, 0, params, states / n, act / n},
      {"SP-Unified + ZeRO-1", 2 * p * share, unified, params, states / n, act / n},
      {"SP-Unified + ZeRO-2", 2 * p * share, unified, kBf16 * p + kGradient * p / n, states / n,
       act / n},
      {"SP-Unified + ZeRO-3", 3 * p * share, unified, params / n, states / n, act / n}};
  if (heads % devices == 0) {
    rows.insert(rows.begin(), {"SP-Ulysses", 2 * p * share, unified, params, states, act / n});
    rows.push_back(
        {"TP", 0, 8 * hidden * share, params / n, states / n, whole + (act - whole) / n});
    rows.push_back({"TP-sp", 0, 8 * hidden * share, params / n, states / n, act / n});
  }
  if (layers % devices == 0) {
    const double passed_on = devices == 1 ? 0 : 2 * hidden / static_cast<double>(layers);
    rows.push_back({"PP", 0, passed_on, params / n, states / n, act / n});
  }
  return rows;
}

}  // namespace armillary::tune
