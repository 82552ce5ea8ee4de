// gathered_pass.cpp: each rank projects some of the new tokens, then Q, K and V of all are
// gathered. Each rank attends with all queries to the keys that it has, and sends the partial
// results to the ranks of the queries, out and lse in one message, which merge them in the order of
// ranks, in fp32.
//
//   a layer, P ranks, T tokens   Q, K and V: all ranks together send (P - 1) T (H D + G (D + E)) e
//                                bytes; partial results: (P - 1) T H (E + 1) a
//
// The products of matrices are divided over the ranks, which pays where a step has many sessions.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <span>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/model/global_range.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/serve/local_keys.h"
#include "armillary/serve/pass.h"
#include "armillary/train/tensor_array.h"

namespace armillary::serve {
namespace {

/// Packed tokens dealt over the ranks in equal parts.
class DealtTokens {
 public:
  DealtTokens(const comm::Communicator& comm, std::int64_t tokens) : rank_(comm.rank()) {
    for (int rank = 0; rank < comm.world(); ++rank) {
      const model::EvenPart part = model::even_part(tokens, rank, comm.world());
      counts_.push_back(part.size);
      if (rank == rank_) begin_ = part.begin;
    }
  }

  std::int64_t begin() const { return begin_; }
  std::int64_t size() const { return counts_[static_cast<std::size_t>(rank_)]; }
  /// The elements of each rank, `width` for each token.
  std::vector<std::int64_t> elements(std::int64_t width) const {
    std::vector<std::int64_t> elements;
    for (const std::int64_t count : counts_) elements.push_back(count * width);
    return elements;
  }

 private:
  int rank_;
  std::int64_t begin_ = 0;
  std::vector<std::int64_t> counts_;  ///< By rank.
};

/// The rows [T, W] of all ranks, from those of this one.
at::Tensor gathered_rows(comm::Communicator& comm, const DealtTokens& dealt,
                         const at::Tensor& mine_LW, std::int64_t tokens) {
  const std::int64_t width = mine_LW.size(1);
  const at::Tensor all_TW = at::empty({tokens, width}, mine_LW.options());
  const std::vector<std::int64_t> counts = dealt.elements(width);
  const at::Tensor own_LW = mine_LW.contiguous();
  comm.wait(comm::start_all_gather(comm, train::array_of(own_LW), train::array_of(all_TW), counts));
  return all_TW;
}

/// Attention of the layers of one pass, in their order.
class GatheredAttention {
 public:
  GatheredAttention(const PassContext& context, const LocalKeys& keys, const DealtTokens& dealt)
      : context_(context), keys_(keys), dealt_(dealt) {}

  at::Tensor attend(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD, const at::Tensor& v_BLGE) {
    const int layer = layer_++;
    // Q, K and V of all tokens.
    const at::Tensor mine_LW =
        at::cat({q_BLHD.select(0, 0).flatten(1), k_BLGD.select(0, 0).flatten(1),
                 v_BLGE.select(0, 0).flatten(1)},
                1);
    const at::Tensor all_TW = gathered_rows(context_.comm, dealt_, mine_LW, keys_.tokens());
    std::int64_t next = 0;
    const auto take = [&](const at::Tensor& model_BLHD) {
      const std::int64_t heads = model_BLHD.size(2);
      const std::int64_t dim = model_BLHD.size(3);
      const at::Tensor part = all_TW.narrow(1, next, heads * dim);
      next += heads * dim;
      return part.unflatten(1, {heads, dim}).unsqueeze(0).contiguous();
    };
    const at::Tensor q_BTHD = take(q_BLHD);
    const at::Tensor k_BTGD = take(k_BLGD);
    const at::Tensor v_BTGE = take(v_BLGE);
    keys_.write(layer, k_BTGD, v_BTGE);
    return merged_results(layer, q_BTHD, v_BTGE.size(3));
  }

 private:
  /// The results of this rank's queries over all keys.
  at::Tensor merged_results(int layer, const at::Tensor& q_BTHD, std::int64_t dim) const {
    const std::int64_t heads = q_BTHD.size(2);
    const at::ScalarType wide = kernel::accumulator(q_BTHD.scalar_type());
    const at::TensorOptions options = q_BTHD.options().dtype(wide);
    const kernel::Partial own{.out_BLHE = at::empty({1, keys_.tokens(), heads, dim}, options),
                              .lse_BLH = at::empty({1, keys_.tokens(), heads}, options)};
    keys_.attend(layer, q_BTHD, own);
    // By token and head: out, then lse.
    const at::Tensor mine_THF =
        at::cat({own.out_BLHE.select(0, 0), own.lse_BLH.select(0, 0).unsqueeze(2)}, 2);
    const at::Tensor all_PLHF =
        at::empty({context_.comm.world(), dealt_.size(), heads, dim + 1}, options);
    const std::vector<std::int64_t> outgoing = dealt_.elements(heads * (dim + 1));
    const std::vector<std::int64_t> incoming(outgoing.size(), dealt_.size() * heads * (dim + 1));
    context_.comm.wait(comm::start_all_to_all(context_.comm, train::array_of(mine_THF),
                                              train::array_of(all_PLHF),
                                              {.outgoing = outgoing, .incoming = incoming}));
    const auto partial_of = [&](std::int64_t rank) {
      const at::Tensor x_BLHF = all_PLHF.narrow(0, rank, 1);
      return kernel::Partial{.out_BLHE = x_BLHF.narrow(3, 0, dim).contiguous(),
                             .lse_BLH = x_BLHF.select(3, dim).contiguous()};
    };
    kernel::Partial sum = partial_of(0);
    for (std::int64_t rank = 1; rank < context_.comm.world(); ++rank) {
      kernel::merge(sum, partial_of(rank));
    }
    return sum.out_BLHE.to(q_BTHD.scalar_type());
  }

  const PassContext& context_;
  const LocalKeys& keys_;
  const DealtTokens& dealt_;
  int layer_ = 0;
};

/// The part of a list that is dealt to this rank.
std::vector<std::int64_t> own_part(const DealtTokens& dealt, const std::vector<std::int64_t>& all) {
  const auto begin = all.begin() + dealt.begin();
  return {begin, begin + dealt.size()};
}

}  // namespace

at::Tensor run_gathered(const PassContext& context, std::span<const PassPart> parts) {
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> tokens = packed_tokens(parts);
  const std::vector<std::int64_t> positions = packed_positions(context.cache, parts);
  PassAppends appends(context.cache);
  const LocalKeys keys(context, parts, appends);
  const DealtTokens dealt(context.comm, keys.tokens());
  GatheredAttention attention(context, keys, dealt);
  const model::Attend attend = [&](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                   const at::Tensor& v_BLGE) {
    return attention.attend(q_BLHD, k_BLGD, v_BLGE);
  };
  return runtime::or_abort(context.comm, [&] {
    const at::Tensor x_BLE =
        features_of(context, own_part(dealt, tokens), own_part(dealt, positions), attend);
    const at::Tensor x_TE = gathered_rows(context.comm, dealt, x_BLE.select(0, 0), keys.tokens());
    appends.end();
    return x_TE.index_select(0, at::tensor(keys.lasts(), at::kLong));
  });
}

}  // namespace armillary::serve
