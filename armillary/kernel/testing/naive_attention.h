// naive_attention.h: attention as one fp64 softmax over an explicit S x S matrix of Mask::visible,
// with gradients by autograd. For tests, and for benchmarks that check results before they time.
//
// It shares no code and no formula with the kernels, except DropoutStream::drops, which defines the
// entries that are dropped.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "armillary/kernel/score.h"
#include "armillary/plan/mask/mask.h"

namespace armillary::kernel {

/// Inputs over whole sequences and all heads. Letters as in block_attention.h; S counts all tokens.
struct Sequences {
  at::Tensor q_BSHD;
  at::Tensor k_BSGD;
  at::Tensor v_BSGE;
  at::Tensor dout_BSHE;
};

/// Results of forward and backward over whole sequences.
struct Results {
  at::Tensor out_BSHE;
  at::Tensor lse_BSH;
  at::Tensor dq_BSHD;
  at::Tensor dk_BSGD;
  at::Tensor dv_BSGE;
  at::Tensor dsinks_H = {};     ///< defined if sinks were given
  at::Tensor max_logit_H = {};  ///< largest visible score of each head; -inf if none
};

struct Sizes {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 8;
  std::int64_t value_dim = 8;
};

/// Normally distributed numbers, rounded to `dtype`; the same for the same seed.
Sequences random_sequences(const Sizes& sizes, const plan::Mask& mask, at::ScalarType dtype,
                           std::uint64_t seed);

/// hidden[q, k] by Mask::visible for every pair.
at::Tensor hidden_matrix(const plan::Mask& mask);

/// Forward and backward; all results are fp64. A row that sees no key has output 0, and log-sum-exp
/// -inf or the sink of its head. `sinks_H` is as in finish(): one logit per query head, any dtype.
Results naive_attention(const Sequences& sequences, const plan::Mask& mask, const Score& score,
                        const at::Tensor& sinks_H = {});

/// The same with a plain score.
Results naive_attention(const Sequences& sequences, const plan::Mask& mask, double scale);

/// max |given - required| / max |required| over finite elements of `required`; NaN if any element
/// is NaN or shapes differ. Equal infinities differ by 0. If that maximum is 0, the absolute error.
double relative_error(const at::Tensor& result, const at::Tensor& required);

}  // namespace armillary::kernel
