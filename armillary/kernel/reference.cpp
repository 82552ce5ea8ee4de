// Attention by ATen, one MaskedTile at a time: a mask tile in one batch entry for one KV head.
//
// Forward: scores, maximum, weights, output and log-sum-exp of the piece, merged into the carry.
// Backward: P, dP, dS, and from them dV, dQ and dK. Hidden pairs have score -inf and weight 0; a
// NaN or Inf in an input takes slower paths that keep it away from rows that do not see it.
#include "armillary/kernel/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "armillary/kernel/mask_tiles.h"
#include "armillary/kernel/vector_math.h"

// Letters in this file: M query tokens x query heads of one KV head, N keys, I a dim of size 1.
namespace armillary::kernel {
namespace {

// The scores of a mask tile (1 MiB in fp32) stay in the L2 cache, and its GEMMs are large enough to
// run at full speed.
constexpr std::int64_t kQueryRows = 512;
constexpr std::int64_t kKeyRows = 512;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kLog2E = 1.4426950408889634;

/// False if any element is NaN or Inf. Also false if the sum of finite numbers overflows; then the
/// callers take their slow path, which gives the same result.
bool surely_finite(const at::Tensor& x) {
  return std::isfinite(x.sum().item<double>());
}

/// x = exp(x), computed as 2^(x log2 e). ATen hands exp, but not exp2, to a library that is slower,
/// above all if results underflow.
void exp_in_place(at::Tensor& x) {
  x.mul_(kLog2E).exp2_();
}

/// scale * a_MD b_ND^T
at::Tensor products(const at::Tensor& a_MD, const at::Tensor& b_ND, double scale) {
  at::Tensor products_MN = at::empty({a_MD.size(0), b_ND.size(0)}, a_MD.options());
  return at::addmm_out(products_MN, products_MN, a_MD, b_ND.t(), /*beta=*/0, scale);
}

/// weights x, in which a hidden weight of 0 keeps even a NaN or Inf of `x` away. The product is
/// computed without the rows of `x` that have one; these are added one by one. Slow, but healthy
/// runs do not need it.
at::Tensor weighted_sum(const at::Tensor& weights_MN, const at::Tensor& x_NX,
                        const at::Tensor& hidden_MN) {
  const at::Tensor nonfinite_N = x_NX.isfinite().all(1).logical_not_();
  at::Tensor sum_MX = weights_MN.mm(x_NX.masked_fill(nonfinite_N.unsqueeze(1), 0));
  const at::Tensor nonfinite_rows = nonfinite_N.nonzero().squeeze(1).cpu();
  for (std::int64_t i = 0; i < nonfinite_rows.size(0); ++i) {
    const std::int64_t row = nonfinite_rows[i].item<std::int64_t>();
    const at::Tensor term_MX = weights_MN.narrow(1, row, 1) * x_NX.narrow(0, row, 1);
    sum_MX.add_(term_MX.masked_fill(hidden_MN.narrow(1, row, 1), 0));
  }
  return sum_MX;
}

/// A mask tile in one batch entry, for one KV head and the query heads that read it.
struct MaskedTile {
  plan::Interval q_rows;
  plan::Interval k_rows;
  plan::Interval q_heads;
  std::int64_t kv_head = 0;
  std::int64_t batch = 0;
  at::Tensor bias_LIN;      ///< 0 if visible, -inf if hidden; undefined: all visible
  at::Tensor slopes_IHI;    ///< slopes of the query heads; undefined: none
  at::Tensor distance_LIN;  ///< |k - q - (kv_len - q_len)|, with slopes only
  at::Tensor keep_LHN;      ///< 0 or 1 / (1 - p); undefined: no dropout

  /// Views of the piece: [tokens, heads, ...] of a query tensor, [N, ...] of a key tensor.
  at::Tensor queries(const at::Tensor& x_BLHX) const {
    return x_BLHX.select(0, batch)
        .slice(0, q_rows.begin, q_rows.end)
        .slice(1, q_heads.begin, q_heads.end);
  }
  at::Tensor keys(const at::Tensor& x_BLGX) const {
    return x_BLGX.select(0, batch).slice(0, k_rows.begin, k_rows.end).select(1, kv_head);
  }

  /// The same as M or N rows in the accumulator dtype. Copies only if rows or dtype require it.
  at::Tensor q_side(const at::Tensor& x_BLHX) const {
    return queries(x_BLHX).flatten(0, 1).to(accumulator(x_BLHX.scalar_type()));
  }
  at::Tensor k_side(const at::Tensor& x_BLGX) const {
    return keys(x_BLGX).to(accumulator(x_BLGX.scalar_type()));
  }

  bool mixed() const { return bias_LIN.defined(); }
  at::Tensor by_token(const at::Tensor& x_MN) const {
    return x_MN.unflatten(0, {q_rows.end - q_rows.begin, q_heads.end - q_heads.begin});
  }
  at::Tensor hidden() const {
    return (bias_LIN < 0).expand({-1, q_heads.end - q_heads.begin, -1}).flatten(0, 1);
  }

  /// Makes hidden scores -inf. Adding the bias is fast, but NaN - inf would be NaN.
  void hide_scores(const at::Tensor& s_MN) const {
    if (!mixed()) return;
    if (surely_finite(s_MN)) {
      by_token(s_MN).add_(bias_LIN);
    } else {
      by_token(s_MN).masked_fill_(bias_LIN < 0, -kInf);
    }
  }
  /// Makes hidden weights 0. They are 0 already unless an input has a NaN or Inf.
  void hide_weights(const at::Tensor& w_MN) const {
    if (mixed() && !surely_finite(w_MN)) by_token(w_MN).masked_fill_(bias_LIN < 0, 0);
  }

  /// x *= keep
  void drop(const at::Tensor& x_MN) const {
    if (keep_LHN.defined()) by_token(x_MN).mul_(keep_LHN);
  }

  /// w x over the keys, and w^T x over the queries, without the effect of hidden pairs.
  at::Tensor sum_over_keys(const at::Tensor& w_MN, const at::Tensor& x_NX) const {
    if (!mixed() || surely_finite(x_NX)) return w_MN.mm(x_NX);
    return weighted_sum(w_MN, x_NX, hidden());
  }
  at::Tensor sum_over_queries(const at::Tensor& w_MN, const at::Tensor& x_MX) const {
    if (!mixed() || surely_finite(x_MX)) return w_MN.t().mm(x_MX);
    return weighted_sum(w_MN.t(), x_MX, hidden().t());
  }
};

/// Sets the bias of visible pairs to 0.
template <class Number>
void show(const std::vector<VisibleKeys>& visible, const at::Tensor& bias_LIN) {
  Number* const bias = bias_LIN.data_ptr<Number>();
  for (const auto& [q_row, k_rows] : visible) {
    Number* const row = bias + q_row * bias_LIN.size(2);
    std::fill(row + k_rows.begin, row + k_rows.end, Number{0});
  }
}

/// The bias of a mask tile, written on the CPU row by row.
at::Tensor bias_of(const plan::Mask& mask, const Strip& q, const Strip& k,
                   const at::TensorOptions& options) {
  const at::Tensor bias_LIN =
      at::full({tokens(q.runs), 1, tokens(k.runs)}, -kInf, options.device(at::kCPU));
  const std::vector<VisibleKeys> visible = visible_keys(mask, q, k);
  if (options.dtype() == at::kDouble) {
    show<double>(visible, bias_LIN);
  } else {
    show<float>(visible, bias_LIN);
  }
  return bias_LIN.to(options.device());
}

/// Global positions of the rows of a mask tile, for slopes and dropout.
struct Positions {
  std::vector<std::int64_t> q;
  std::vector<std::int64_t> k;
};

/// |k - q - shift|, exact in int64 and then rounded once.
at::Tensor distance_of(const Positions& positions, std::int64_t shift,
                       const at::TensorOptions& options) {
  const at::Tensor q_L = at::tensor(positions.q, at::kLong);
  const at::Tensor k_N = at::tensor(positions.k, at::kLong);
  return (k_N - (q_L + shift).view({-1, 1, 1})).abs_().to(options);
}

/// Writes the dropout factors of a piece, by query, head, key.
template <class Number>
void fill_keep(const Dropout& dropout, const Positions& positions, std::int64_t batch,
               std::int64_t first_head, const at::Tensor& keep_LHN) {
  Number* row = keep_LHN.data_ptr<Number>();
  std::vector<DropoutStream> streams;
  streams.reserve(keep_LHN.size(1));
  for (std::int64_t h = 0; h < keep_LHN.size(1); ++h) {
    streams.emplace_back(dropout, batch, first_head + h);
  }
  for (const std::int64_t q : positions.q) {
    for (const DropoutStream& stream : streams) {
      stream.fill(q, positions.k, std::span(row, positions.k.size()));
      row += positions.k.size();
    }
  }
}

at::Tensor keep_of(const Dropout& dropout, const Positions& positions, const MaskedTile& piece,
                   std::int64_t first_q_head, const at::TensorOptions& options) {
  const at::Tensor keep_LHN = at::empty(
      {std::ssize(positions.q), piece.q_heads.end - piece.q_heads.begin, std::ssize(positions.k)},
      options.device(at::kCPU));
  const std::int64_t first_head = first_q_head + piece.q_heads.begin;
  if (options.dtype() == at::kDouble) {
    fill_keep<double>(dropout, positions, piece.batch, first_head, keep_LHN);
  } else {
    fill_keep<float>(dropout, positions, piece.batch, first_head, keep_LHN);
  }
  return keep_LHN.to(options.device());
}

/// Calls visit(MaskedTile) for every piece with a visible pair, in a fixed order.
template <class Visit>
void for_each_piece(const Pairs& pairs, const Inputs& inputs, Visit visit) {
  const at::Tensor& q_BLHD = inputs.q_BLHD;
  const std::int64_t heads = q_BLHD.size(2);
  const std::int64_t group = std::clamp<std::int64_t>(heads, 1, pairs.heads.group_size);
  // A mask tile has about kQueryRows rows of scores: tokens times the query heads of a KV head.
  const MaskTileLimits limits{.q_rows = std::max<std::int64_t>(1, kQueryRows / group),
                              .k_rows = kKeyRows};
  const MaskTiles mask_tiles = find_mask_tiles(*pairs.mask, pairs.q_runs, pairs.k_runs, limits);
  const auto acc = q_BLHD.options().dtype(accumulator(q_BLHD.scalar_type()));
  const at::Tensor& slopes_H = inputs.score.alibi_slopes_H;
  const Dropout& dropout = inputs.score.dropout;
  for (const MaskTile& mask_tile : mask_tiles.visible) {
    const Strip& q = mask_tiles.q[mask_tile.q];
    const Strip& k = mask_tiles.k[mask_tile.k];
    MaskedTile piece{.q_rows = q.rows,
                     .k_rows = k.rows,
                     .q_heads = {},
                     .bias_LIN = {},
                     .slopes_IHI = {},
                     .distance_LIN = {},
                     .keep_LHN = {}};
    // State of the mask tile: bias and distances are the same for all heads and batch entries.
    if (!mask_tile.whole) piece.bias_LIN = bias_of(*pairs.mask, q, k, acc);
    Positions rows;
    if (slopes_H.defined() || dropout.on()) {
      rows = {plan::positions(q.runs), plan::positions(k.runs)};
    }
    if (slopes_H.defined()) {
      piece.distance_LIN = distance_of(rows, pairs.mask->kv_len() - pairs.mask->q_len(), acc);
    }
    // Its pieces: KV head by KV head, batch entry by batch entry.
    for (piece.kv_head = 0; piece.kv_head < inputs.k_BLGD.size(2); ++piece.kv_head) {
      piece.q_heads = pairs.heads.q_heads_of(piece.kv_head, heads);
      if (piece.q_heads.empty()) continue;
      if (slopes_H.defined()) {
        const std::int64_t first = pairs.heads.first_q_head;
        piece.slopes_IHI = slopes_H.slice(0, first + piece.q_heads.begin, first + piece.q_heads.end)
                               .to(acc)
                               .view({1, -1, 1});
      }
      for (piece.batch = 0; piece.batch < q_BLHD.size(0); ++piece.batch) {
        if (dropout.on()) {
          piece.keep_LHN = keep_of(dropout, rows, piece, pairs.heads.first_q_head, acc);
        }
        visit(piece);
      }
    }
  }
}

/// Scores of a piece as score.h defines them; hidden ones are -inf. `softcap_grad`, if not null,
/// becomes d score / d (scale <q, k>); without softcap, where that is 1, it stays undefined.
at::Tensor scores(const MaskedTile& piece, const Score& score, const at::Tensor& q_MD,
                  const at::Tensor& k_ND, at::Tensor* softcap_grad = nullptr) {
  const double cap = score.softcap.value_or(1);
  at::Tensor s_MN = products(q_MD, k_ND, score.scale / cap);
  if (score.softcap) {
    s_MN.tanh_();
    if (softcap_grad != nullptr) *softcap_grad = 1 - s_MN.square();
    s_MN.mul_(cap);
  }
  if (piece.slopes_IHI.defined()) {
    piece.by_token(s_MN).addcmul_(piece.slopes_IHI, piece.distance_LIN, -1);
  }
  piece.hide_scores(s_MN);
  return s_MN;
}

class Reference final : public Kernel {
 public:
  Reference() { choose_vector_math(); }
  bool plain_only() const override { return false; }

 private:
  void run_attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const override {
    const c10::NoGradGuard no_grad;
    clear_init(carry);
    for_each_piece(pairs, inputs, [&](const MaskedTile& piece) {
      at::Tensor p_MN =
          scores(piece, inputs.score, piece.q_side(inputs.q_BLHD), piece.k_side(inputs.k_BLGD));
      // Weights. A row that sees no key has maximum -inf; its weights are exp(-inf - 0) = 0.
      const at::Tensor max_MI = p_MN.amax(1, /*keepdim=*/true);
      exp_in_place(p_MN.sub_(max_MI.masked_fill(max_MI == -kInf, 0)));
      const at::Tensor sum_MI = p_MN.sum(1, /*keepdim=*/true);  // includes dropped entries
      piece.drop(p_MN);
      // Output. The largest weight is 1, so the sum is at least 1 unless the row is empty.
      const at::Tensor out_ME =
          piece.sum_over_keys(p_MN, piece.k_side(inputs.v_BLGE)).div_(sum_MI.clamp_min(1));
      const at::Tensor lse_M = (max_MI + sum_MI.log()).squeeze(1);

      // Merge into the carry, and the largest scores.
      Partial partial{piece.queries(carry.out_BLHE), piece.queries(carry.lse_BLH)};
      merge(partial, {piece.by_token(out_ME), piece.by_token(lse_M)});
      if (carry.max_logit_H.defined()) {
        const at::Tensor max_H = carry.max_logit_H.slice(0, piece.q_heads.begin, piece.q_heads.end);
        max_H.copy_(at::maximum(max_H, piece.by_token(max_MI.squeeze(1)).amax(0)));
      }
    });
  }

  void run_attend_grad(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                       InputGrads& grads) const override {
    const c10::NoGradGuard no_grad;
    clear_init(grads);
    const double scale = inputs.score.scale;
    for_each_piece(pairs, inputs, [&](const MaskedTile& piece) {
      const at::Tensor q_MD = piece.q_side(inputs.q_BLHD);
      const at::Tensor k_ND = piece.k_side(inputs.k_BLGD);
      const at::Tensor dout_ME = piece.q_side(upstream.dout_BLHE);

      // P = exp(S - lse)
      at::Tensor softcap_grad_MN;
      at::Tensor p_MN = scores(piece, inputs.score, q_MD, k_ND, &softcap_grad_MN);
      exp_in_place(p_MN.sub_(piece.q_side(upstream.lse_BLH).unsqueeze(1)));
      piece.hide_weights(p_MN);  // a row that saw no key: -inf - -inf is NaN

      // dP = keep * dout V^T, and dV = (keep * P)^T dout
      at::Tensor ds_MN = products(dout_ME, piece.k_side(inputs.v_BLGE), 1);
      piece.drop(ds_MN);
      const at::Tensor kept_MN = piece.keep_LHN.defined() ? p_MN.clone() : p_MN;
      piece.drop(kept_MN);
      piece.keys(grads.dv_BLGE).add_(piece.sum_over_queries(kept_MN, dout_ME));

      // dS = P * (dP - delta), times the gradient of the softcap; dQ = dS K, dK = dS^T Q
      ds_MN.sub_(piece.q_side(upstream.delta_BLH).unsqueeze(1)).mul_(p_MN);
      if (softcap_grad_MN.defined()) ds_MN.mul_(softcap_grad_MN);
      piece.hide_weights(ds_MN);
      const at::Tensor dq = piece.queries(grads.dq_BLHD);
      dq.add_(piece.by_token(piece.sum_over_keys(ds_MN, k_ND)), scale);
      piece.keys(grads.dk_BLGD).add_(piece.sum_over_queries(ds_MN, q_MD), scale);
    });
  }
};

}  // namespace

const Kernel& reference() {
  static const Reference kernel;
  return kernel;
}

}  // namespace armillary::kernel
