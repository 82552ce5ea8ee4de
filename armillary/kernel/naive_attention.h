// naive_attention.h: attention the slow way, for tests and for benchmarks that check before they
// time: one fp64 softmax over an explicit S x S matrix of Mask::visible, gradients by autograd.
// Shares no code and no formula with the kernels, but for DropoutStream::drops: what is dropped is
// a definition.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "armillary/kernel/score.h"
#include "armillary/plan/mask.h"

namespace armillary::kernel {

/// Whole sequences, all heads. Letters as in block_attention.h; S counts all tokens.
struct Sequences {
  at::Tensor q_BSHD;
  at::Tensor k_BSGD;
  at::Tensor v_BSGE;
  at::Tensor dout_BSHE;
};

/// Result of forward and backward over whole sequences.
struct Results {
  at::Tensor out_BSHE;
  at::Tensor lse_BSH;
  at::Tensor dq_BSHD;
  at::Tensor dk_BSGD;
  at::Tensor dv_BSGE;
  at::Tensor dsinks_H = {};     ///< If sinks were given.
  at::Tensor max_logit_H = {};  ///< Largest visible score of each head; -inf if there is none.
};

struct Sizes {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 8;
  std::int64_t value_dim = 8;
};

/// Normal random numbers, rounded to `dtype`, the same for the same seed.
Sequences random_sequences(const Sizes& sizes, const plan::Mask& mask, at::ScalarType dtype,
                           std::uint64_t seed);

/// hidden[q, k], by asking the mask about every pair.
at::Tensor hidden_matrix(const plan::Mask& mask);

/// A row that sees no key is 0 with log-sum-exp -inf, or its head's sink if there is one. `sinks_H`
/// as in finish(): one logit per query head, any dtype. All results are fp64.
Results naive_attention(const Sequences& sequences, const plan::Mask& mask, const Score& score,
                        const at::Tensor& sinks_H = {});

/// The same with nothing but a scale.
Results naive_attention(const Sequences& sequences, const plan::Mask& mask, double scale);

/// max |given - required| / max |required|; NaN if anything is NaN. The same infinities differ by
/// 0; against zeros (or infinities) only, the largest |given| itself.
double relative_error(const at::Tensor& given, const at::Tensor& required);

}  // namespace armillary::kernel
