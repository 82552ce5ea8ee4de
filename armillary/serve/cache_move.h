// cache_move.h: a relayout (plan/relayout) on tensors: K, V of a layer leave in the old layout and
// arrive in the new one. The programs are proved before the first byte moves, and the messages are
// those of the program, op by op.
//
//   k_LGD, v_LGE of the old layout --move(layer)--> k_LGD, v_LGE of the new one
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <list>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/plan/relayout/relayout_program.h"

namespace armillary::serve {

/// K and V of some tokens of this rank, in ascending order of their positions.
struct LayerKv {
  at::Tensor k_LGD;
  at::Tensor v_LGE;
};

/// One relayout on one rank. Collective: every rank makes the object with the same shape and moves
/// the same layers in the same order, those too of which it has nothing. Threads: that of the rank.
class CacheMove {
 public:
  /// Plans and proves. The shape's world is that of `comm`, which must outlive the object.
  /// @throws InvalidArgument as plan::relayout::check_shape; PlanError if the proof fails.
  CacheMove(comm::Communicator& comm, const plan::relayout::RelayoutShape& shape);

  /// Tokens of a layer on this rank, before and after.
  std::int64_t tokens_before(int layer) const;
  std::int64_t tokens_after(int layer) const;

  /// A layer that is under way. Its messages have memory of their own.
  struct LayerMove {
    struct RowMessage {
      const plan::Op* op = nullptr;
      LayerKv kv;
      std::array<comm::Strided, 2> parts;
    };
    std::list<RowMessage> messages;  ///< A list keeps them in place.
    std::vector<comm::Request> requests;
    LayerKv result;
  };

  /// Starts to send the layer as this rank has it, on lane 1. `own` has tokens_before() tokens, of
  /// the heads of the old layout, and may change afterwards. @throws CommError as the communicator.
  LayerMove start(int layer, const LayerKv& own) const;
  /// Waits for a layer; returns it as this rank gets it. Once for each start, in their order.
  LayerKv finish(LayerMove& move) const;
  /// One after the other.
  LayerKv move(int layer, const LayerKv& own) const {
    LayerMove move = start(layer, own);
    return finish(move);
  }

  /// Bytes that all ranks send in all layers.
  std::int64_t moved_bytes() const { return relayout_.tables.moved_bytes(); }

 private:
  /// Places of a part's tokens among those of this rank, int64; undefined if it has none of them.
  struct PartRows {
    at::Tensor before_L;
    at::Tensor after_L;
  };

  void find_rows();
  /// Whether this rank has a layer in a layout.
  bool has_layer(const plan::relayout::CacheLayout& layout, int layer) const;
  const plan::RankProgram& program() const;
  /// The part that an op moves.
  const PartRows& rows_of(const plan::Op& op) const;
  LayerKv taken(const plan::Op& op, const plan::View& view, const LayerKv& own) const;
  void put(const plan::Op& op, const LayerKv& arrived, const LayerKv& result) const;

  comm::Communicator& comm_;
  plan::relayout::Relayout relayout_;
  std::vector<PartRows> rows_;  ///< By part.
  std::int64_t before_ = 0;     ///< Tokens of this rank in a layer that it has, before,
  std::int64_t after_ = 0;      ///< and after.
};

}  // namespace armillary::serve
