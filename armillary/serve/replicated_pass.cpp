// replicated_pass.cpp: every rank projects all new tokens, so queries need not travel; the rank
// that has the page of a new token writes its K and V. Then each rank attends to the keys that it
// has, all ranks exchange their partial results, out and lse of all sessions in one message, and
// each merges them in the order of ranks, in fp32: the same bits everywhere.
//
//   a layer, P ranks   sent by a rank: (P - 1) T H (E + 1) a bytes in P - 1 messages, whatever the
//                      length of the sessions
//
// A rank without keys gives (0, -inf). Other sessions in the pass change no bit of attention; they
// may change those of the products of matrices.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/plan/decode/words.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/serve/local_keys.h"
#include "armillary/serve/pass.h"

namespace armillary::serve {
namespace {

using plan::decode::DecodeOp;

/// Attention of the layers of one pass, in their order.
class ReplicatedAttention {
 public:
  ReplicatedAttention(const PassContext& context, const LocalKeys& keys)
      : context_(context), keys_(keys) {}

  at::Tensor attend(const at::Tensor& q_BLHD, const at::Tensor& k_BLGD, const at::Tensor& v_BLGE) {
    const int layer = layer_++;
    keys_.write(layer, k_BLGD, v_BLGE);
    const std::int64_t tokens = q_BLHD.size(1);
    const std::int64_t heads = q_BLHD.size(2);
    const std::int64_t dim = v_BLGE.size(3);
    const at::ScalarType wide = kernel::accumulator(q_BLHD.scalar_type());
    // A row for each rank: out, then lse.
    const at::Tensor all = at::empty({context_.comm.world(), tokens * heads * (dim + 1)},
                                     q_BLHD.options().dtype(wide));
    const auto partial_of = [&](std::int64_t rank) {
      const at::Tensor flat = all.select(0, rank);
      const std::int64_t outs = tokens * heads * dim;
      return kernel::Partial{
          .out_BLHE = flat.narrow(0, 0, outs).view({1, tokens, heads, dim}),
          .lse_BLH = flat.narrow(0, outs, tokens * heads).view({1, tokens, heads})};
    };
    // The program of the exchange, op by op.
    const std::vector<comm::Strided> rows = rows_of(all);
    std::vector<comm::Message> batch;
    kernel::Partial sum;
    for (const plan::Op& op : context_.exchange.ops) {
      const int rank = op.views.back().blocks.front();  // A block is the part of a rank.
      if (op.kind == DecodeOp::Attend) {
        keys_.attend(layer, q_BLHD, partial_of(rank));
      } else if (op.is_comm()) {
        const bool sends = op.kind == DecodeOp::Send;
        batch.push_back({.direction = sends ? comm::Direction::Send : comm::Direction::Receive,
                         .peer = op.peer,
                         .lane = op.lane,
                         .parts = {&rows[static_cast<std::size_t>(rank)], 1}});
      } else {
        run_batch(batch);
        merge_part(op, partial_of(rank), sum);
      }
    }
    return sum.out_BLHE.to(q_BLHD.scalar_type());
  }

 private:
  /// The memory of each row of a tensor.
  static std::vector<comm::Strided> rows_of(const at::Tensor& all) {
    std::vector<comm::Strided> rows;
    for (std::int64_t i = 0; i < all.size(0); ++i) {
      const at::Tensor row = all.select(0, i);
      const auto bytes = static_cast<std::int64_t>(row.nbytes());
      rows.push_back({static_cast<std::byte*>(row.data_ptr()), 1, bytes, bytes});
    }
    return rows;
  }

  /// Starts messages and waits for them.
  void run_batch(std::vector<comm::Message>& batch) const {
    if (batch.empty()) return;
    const std::vector<comm::Request> requests = context_.comm.start(batch);
    context_.comm.wait_all(requests);
    batch.clear();
  }

  static void merge_part(const plan::Op& op, const kernel::Partial& part, kernel::Partial& sum) {
    if (!op.init[plan::decode::kSumSide]) return kernel::merge(sum, part);
    sum = {.out_BLHE = part.out_BLHE.clone(), .lse_BLH = part.lse_BLH.clone()};
  }

  const PassContext& context_;
  const LocalKeys& keys_;
  int layer_ = 0;
};

}  // namespace

at::Tensor run_replicated(const PassContext& context, std::span<const PassPart> parts) {
  const at::NoGradGuard no_grad;
  const std::vector<std::int64_t> tokens = packed_tokens(parts);
  const std::vector<std::int64_t> positions = packed_positions(context.cache, parts);
  PassAppends appends(context.cache);
  const LocalKeys keys(context, parts, appends);
  ReplicatedAttention attention(context, keys);
  const model::Attend attend = [&](const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                                   const at::Tensor& v_BLGE) {
    return attention.attend(q_BLHD, k_BLGD, v_BLGE);
  };
  return runtime::or_abort(context.comm, [&] {
    const at::Tensor x_BLE = features_of(context, tokens, positions, attend);
    appends.end();
    return x_BLE.select(0, 0).index_select(0, at::tensor(keys.lasts(), at::kLong));
  });
}

}  // namespace armillary::serve
