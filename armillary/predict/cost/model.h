// model.h: what a transformer costs, whoever counts it: the trainer for the models that it runs
// (model/model.h), or cost_of() for shapes that were published.
//
//   train: Model::cost() ---.
//   ModelShape --cost_of()--'--> ModelCost --> time and memory of a step (step.h), reported flops
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace armillary::cost {

/// The attention of a model: `layers` calls in a pass, all of one shape.
struct ModelAttention {
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// Bytes that a rank holds at one moment of a step, beside what it keeps for backward and what is
/// there between steps.
struct Moment {
  // For each token of the pass.
  std::int64_t token = 0;     ///< Divided over the ranks along tp.
  std::int64_t whole = 0;     ///< On each of them.
  std::int64_t along_tp = 0;  ///< Likewise, if there are several.
  // For each token whose logits exist.
  std::int64_t logits = 0;  ///< Divided over the ranks along tp.
  std::int64_t chunk = 0;   ///< On each of the ranks along tp.
  // Matrices and their gradients, divided over the ranks along tp.
  std::int64_t weights = 0;
  std::int64_t waiting = 0;  ///< More, if the layer is computed again: gradients until its end.
};

/// Bytes per token of activations, by the time that they live, and the moments of a step that may
/// need most.
struct TokenBytes {
  std::int64_t layer = 0;     ///< Kept from forward to backward for each layer.
  std::int64_t input = 0;     ///< Input of a layer, which every recomputation keeps.
  std::int64_t between = 0;   ///< Input of a layer's experts, likewise.
  std::int64_t kv = 0;        ///< K and V of a layer, which `layer` has too.
  std::int64_t output = 0;    ///< Output and log-sum-exp of attention.
  std::int64_t last = 0;      ///< Input of the last unit: with those of Y layers, Y + 1.
  std::int64_t along_tp = 0;  ///< Kept for each layer by every rank along tp, if there are several.
  std::int64_t again = 0;     ///< Output of a layer while it is computed again.
  std::int64_t once = 0;      ///< Held all the time.
  std::int64_t logits = 0;    ///< Those of a token in forward alone.
  std::vector<Moment> loss;   ///< Forward of the last unit.
  std::vector<Moment> last_unit;   ///< Backward of it.
  std::vector<Moment> backward;    ///< Backward of a layer.
  std::vector<Moment> first_unit;  ///< Backward of the first unit.
};

/// Bytes of activations of a sequence whatever its tokens, on every rank that has some of them.
struct SequenceBytes {
  std::int64_t input = 0;  ///< In the input of a layer, which every recomputation keeps.
  std::int64_t layer = 0;  ///< Kept by a layer beside it; divided over the ranks along tp.
};

/// Cost of a model, counted from its options alone.
struct ModelCost {
  std::int64_t parameters = 0;
  std::int64_t layer_parameters = 0;  ///< The part of them that is in layers.
  /// The part of those that is in experts, which ranks along ep divide, not those along tp; and
  /// the rows that a token has in them.
  std::int64_t expert_parameters = 0;
  std::int64_t expert_rows = 0;
  /// The parts of those of layers, and of the first and the last unit, that every rank along tp
  /// has.
  std::int64_t whole_layer_parameters = 0;
  std::int64_t whole_first_parameters = 0;
  std::int64_t whole_last_parameters = 0;
  /// The parts of the units before and after the layers. Both 0: units are not known.
  std::int64_t first_parameters = 0;
  std::int64_t last_parameters = 0;
  bool tied = false;  ///< The last unit uses those of the first too.
  /// Parameters of matrices that multiply a token, of experts those that it is routed to: forward
  /// takes 2 flops per token and such parameter, backward 4.
  std::int64_t matmul_parameters = 0;
  std::int64_t layer_matmul_parameters = 0;  ///< Likewise.
  std::int64_t kv_parameters = 0;            ///< Those of one layer that make K and V.
  /// Flops of all layers in forward beside these products and attention: for each token, and for
  /// each sequence whatever its tokens.
  double token_flops = 0;
  double sequence_flops = 0;
  /// Branches of a layer; ranks along tp gather the tokens of each, and scatter its sums.
  std::int64_t tp_branches = 2;
  ModelAttention attention;
  TokenBytes bytes;
  SequenceBytes sequence_bytes;
  std::int64_t logits = 0;  ///< Outputs of a token: the vocabulary.
  std::int64_t loss_chunk_tokens = std::numeric_limits<std::int64_t>::max();

  /// Floating point operations of a step, forward and backward: 6 per token and matrix parameter,
  /// and 12 D per visible pair of each query head (2 products of D forward, 4 backward; 2 flops per
  /// element); thrice the other flops of one sequence. Recomputed scores and masked pairs do not
  /// count.
  double flops(std::int64_t tokens, std::int64_t visible_pairs) const;

  /// The same model with another number of layers, 0 too. Requires one layer at least, and layers
  /// that are alike.
  ModelCost with_layers(std::int64_t layers) const;

  /// The model as ranks along tp have it, 1 / tp each: K, V and the matrices that make them count
  /// for every rank that has a copy (kv_copies), and whole parameters for each.
  ModelCost along_tp(int tp) const;
};

/// Ranks along tp that have the same KV head; 1 if there is a head for each rank.
int kv_copies(const ModelAttention& attention, int tp);
/// Whether every rank along tp has as many of the KV heads, or one of them as many others have.
bool shares_kv_heads(const ModelAttention& attention, int tp);

/// Policy: the tensors that a layer keeps from forward to backward, which computes the others
/// again.
enum class Recompute : std::uint8_t {
  None,             ///< All that backward needs.
  Full,             ///< Its input. Attention runs forward twice.
  AttentionOutput,  ///< Its input, and attention's out and log-sum-exp. Attention runs forward
                    ///< once.
};
/// `none`, `full` and `attention_output`, in the order of the enumerators.
const std::vector<std::string>& recompute_names();

/// Bytes of a token that a layer keeps.
std::int64_t kept_by_layer(const TokenBytes& bytes, Recompute policy);
/// Bytes of activations that all layers keep of so many tokens, on one rank.
double kept_bytes(const ModelCost& cost, Recompute policy, double tokens);

/// Operations that a policy repeats in a step: the products of the layers, and attention unless its
/// output is kept.
double flops_again(const ModelCost& cost, Recompute policy, std::int64_t tokens,
                   std::int64_t visible_pairs);

/// Shape of a decoder-only transformer with a gated feed-forward layer (Llama), or with one of two
/// matrices (GPT).
struct ModelShape {
  int layers = 1;
  int hidden = 1;
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 1;
  int ffn = 1;
  int vocab = 1;
  bool gated = true;
};

/// Cost as published systems have it, in bf16: a layer keeps input and result of both norms, Q, Out
/// and the inner values of the feed-forward layer (gate, up and their product), K and V; its
/// backward holds gradients of those inner values, and three of hidden size; the loss has all
/// logits at once, in bf16 and in fp32 with their gradient. Parameters of norms and biases, and
/// log-sum-exps do not count.
/// @throws InvalidArgument for about 2^59 parameters or more, as dit_cost_of().
ModelCost cost_of(const ModelShape& shape);

/// Cost of a diffusion transformer (DiT) of this shape, which has neither an embedding nor an
/// output matrix: six vectors of adaLN-zero of hidden size, made once for each sequence (Peebles
/// and Xie, arXiv:2212.09748, section 3.2), and cross-attention with so many tokens of text, if
/// any.
ModelCost dit_cost_of(const ModelShape& shape, int text_tokens);

}  // namespace armillary::cost
