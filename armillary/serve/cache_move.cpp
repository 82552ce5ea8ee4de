// cache_move.cpp: a message is packed, because rows of a part need not follow each other. K and V
// of a copy are two ops of the program, which are done together.
#include "armillary/serve/cache_move.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/relayout/check_relayout.h"
#include "armillary/plan/relayout/text.h"

namespace armillary::serve {
namespace {

using plan::relayout::KeepOperand;
using plan::relayout::RelayoutOp;
using plan::relayout::RelayoutShape;
using plan::relayout::RelayoutTensor;
using Positions = std::vector<std::int64_t>;

/// Places in `all` of those that are also in `some`; both ascend.
at::Tensor places_of(const Positions& all, const Positions& some) {
  Positions common;
  std::ranges::set_intersection(all, some, std::back_inserter(common));
  for (std::int64_t& position : common) {
    position = std::ranges::lower_bound(all, position) - all.begin();
  }
  return at::tensor(common, at::kLong);
}

comm::Strided bytes_of_tensor(const at::Tensor& x) {
  ARMILLARY_CHECK(x.is_contiguous());
  const auto bytes = static_cast<std::int64_t>(x.nbytes());
  return {static_cast<std::byte*>(x.data_ptr()), 1, bytes, bytes};
}

}  // namespace

CacheMove::CacheMove(comm::Communicator& comm, const RelayoutShape& shape)
    : comm_(comm), relayout_(build_relayout(shape)) {
  ARMILLARY_CHECK(shape.world == comm.world());
  const std::vector<plan::Diagnostic> faults = check_relayout(relayout_.world(), shape, 1);
  if (!faults.empty()) {
    fail<PlanError>("relayout: {}: {}\n{}", faults[0].rule, faults[0].text,
                    to_grid(relayout_.world(), shape, &faults[0]));
  }
  find_rows();
}

const plan::RankProgram& CacheMove::program() const {
  return relayout_.ranks[static_cast<std::size_t>(comm_.rank())];
}

void CacheMove::find_rows() {
  const RelayoutShape& shape = relayout_.tables.shape();
  const auto positions_by_rank = [](const plan::relayout::CacheLayout& layout) {
    std::vector<Positions> by_rank;
    for (const plan::Runs& runs : token_runs(layout)) by_rank.push_back(plan::positions(runs));
    return by_rank;
  };
  const std::vector<Positions> before = positions_by_rank(shape.from);
  const std::vector<Positions> after = positions_by_rank(shape.to);
  const auto own_before = place_of(shape.from, comm_.rank());
  const auto own_after = place_of(shape.to, comm_.rank());
  const auto count = [](const std::vector<Positions>& by_rank, const auto& place) {
    return place ? static_cast<std::int64_t>(by_rank[place->token_rank].size()) : 0;
  };
  before_ = count(before, own_before);
  after_ = count(after, own_after);
  for (const plan::relayout::TokenPart& part : relayout_.tables.parts()) {
    const Positions& from = before[static_cast<std::size_t>(part.from)];
    const Positions& to = after[static_cast<std::size_t>(part.to)];
    PartRows& rows = rows_.emplace_back();
    if (own_before && own_before->token_rank == part.from) rows.before_L = places_of(from, to);
    if (own_after && own_after->token_rank == part.to) rows.after_L = places_of(to, from);
  }
}

bool CacheMove::has_layer(const plan::relayout::CacheLayout& layout, int layer) const {
  const auto place = place_of(layout, comm_.rank());
  if (!place) return false;
  const plan::Interval layers =
      layers_of(layout, relayout_.tables.shape().cache.layers, place->stage);
  return layers.begin <= layer && layer < layers.end;
}

std::int64_t CacheMove::tokens_before(int layer) const {
  return has_layer(relayout_.tables.shape().from, layer) ? before_ : 0;
}

std::int64_t CacheMove::tokens_after(int layer) const {
  return has_layer(relayout_.tables.shape().to, layer) ? after_ : 0;
}

const CacheMove::PartRows& CacheMove::rows_of(const plan::Op& op) const {
  const int part = relayout_.tables.part_of(op.views.front().blocks.front());
  return rows_[static_cast<std::size_t>(part)];
}

/// The heads and tokens of a view of what this rank has, packed.
LayerKv CacheMove::taken(const plan::Op& op, const plan::View& view, const LayerKv& own) const {
  const at::Tensor& rows_L = rows_of(op).before_L;
  const std::int64_t first = view.heads.begin - program().tiles[view.tile].heads.begin;
  const auto pack = [&](const at::Tensor& x_LGD) {
    return x_LGD.narrow(1, first, view.heads.count()).index_select(0, rows_L).contiguous();
  };
  return {pack(own.k_LGD), pack(own.v_LGE)};
}

/// Writes what an op has brought to its place.
void CacheMove::put(const plan::Op& op, const LayerKv& arrived, const LayerKv& result) const {
  const plan::View& view = op.views.front();
  const at::Tensor& rows_L = rows_of(op).after_L;
  const std::int64_t first = view.heads.begin - program().tiles[view.tile].heads.begin;
  const auto unpack = [&](const at::Tensor& x_LGD, const at::Tensor& to_LGD) {
    to_LGD.narrow(1, first, view.heads.count()).index_copy_(0, rows_L, x_LGD);
  };
  unpack(arrived.k_LGD, result.k_LGD);
  unpack(arrived.v_LGE, result.v_LGE);
}

CacheMove::LayerMove CacheMove::start(int layer, const LayerKv& own) const {
  const RelayoutShape& shape = relayout_.tables.shape();
  const std::int64_t before = tokens_before(layer);
  ARMILLARY_CHECK(own.k_LGD.size(0) == before && own.v_LGE.size(0) == before);
  const auto place = place_of(shape.to, comm_.rank());
  const std::int64_t heads =
      place ? heads_of(shape.to, shape.cache.kv_heads, place->head_group).count() : 0;
  const auto empty_like = [](const at::Tensor& x_LGD, std::int64_t tokens, std::int64_t count) {
    return at::empty({tokens, count, x_LGD.size(2)}, x_LGD.options());
  };
  const std::int64_t after = tokens_after(layer);
  LayerMove move;
  move.result = {empty_like(own.k_LGD, after, heads), empty_like(own.v_LGE, after, heads)};
  std::vector<comm::Message> batch;
  for (const plan::Op& op : program().ops) {
    if (op.step != layer) continue;
    if (op.kind == RelayoutOp::Keep) {
      const plan::View& from = op.views[KeepOperand::kFrom];
      const bool is_k = program().tiles[from.tile].tensor == RelayoutTensor::K;
      if (is_k) put(op, taken(op, from, own), move.result);
      continue;
    }
    const bool sends = op.kind == RelayoutOp::Send;
    LayerMove::RowMessage& message = move.messages.emplace_back();
    message.op = &op;
    if (sends) {
      message.kv = taken(op, op.views.front(), own);
    } else {
      const std::int64_t tokens = rows_of(op).after_L.size(0);
      const std::int64_t count = op.views.front().heads.count();
      message.kv = {empty_like(own.k_LGD, tokens, count), empty_like(own.v_LGE, tokens, count)};
    }
    message.parts = {bytes_of_tensor(message.kv.k_LGD), bytes_of_tensor(message.kv.v_LGE)};
    batch.push_back({.direction = sends ? comm::Direction::Send : comm::Direction::Receive,
                     .peer = op.peer,
                     .lane = op.lane,
                     .parts = message.parts});
  }
  move.requests = comm_.start(batch);
  return move;
}

LayerKv CacheMove::finish(LayerMove& move) const {
  comm_.wait_all(move.requests);
  for (const LayerMove::RowMessage& message : move.messages) {
    if (message.op->kind == RelayoutOp::Recv) put(*message.op, message.kv, move.result);
  }
  move.messages.clear();
  return move.result;
}

}  // namespace armillary::serve
