// plan.h: sequence-parallel attention as plain data.
//
// A plan says, for every rank, in order, what to send, receive, attend to and merge. It holds no
// tensors, streams or pointers, so it can be printed, diffed, verified, simulated and executed.
//
//   Problem --strategy--> Plan --lower--> Plan --verify-->   a proof, or what is wrong  (verify.h)
//                                           |----execute-->  tensors     (runtime/executor.h)
//                                           '----print---->  a grid to read, JSON (text.h, json.h)
//
// Lowering (passes/lower.h) replaces ops by fewer ones; what it makes is a plan like any other.
//
//   rank program   slots      buffers; `external` ones are the caller's tensors
//                  tiles      (tensor, heads, blocks) placed in a slot; a slot holds one at a time.
//                  Before a result of the caller, its slot may hold another tile as large
//                  ops        actions on views of tiles, in program order
//
// Meaning of order. Ops of one lane keep their order; ops of different lanes wait for each other
// only through slots: an op waits for every earlier op of the rank that wrote what it reads (RAW),
// or that read or wrote what it writes (WAR, WAW). Writing a tile ends the tile that was in its
// slot before. Sends and receives of one lane with the same `step` are one batch: they start
// together, and batches of a lane start in order. Messages of a lane between an ordered pair of
// ranks match in order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/plan/block_ids.h"
#include "armillary/plan/blocks.h"
#include "armillary/plan/problem.h"

namespace armillary::plan {

/// Replay: the messages of forward again, with its results given (passes/replay.h).
enum class Pass : std::uint8_t { Forward, Backward, Replay };

/// What a tile is a part of. Out and Lse of a `partial` tile are a result over some of the keys.
enum class Tensor : std::uint8_t { Q, K, V, Out, Lse, DOut, Delta, DQ, DK, DV };
bool is_kv(Tensor tensor);  ///< K, V, DK, DV: counted in key blocks and KV heads.

struct Slot {
  std::int64_t bytes = 0;
  bool external = false;  ///< A tensor of the caller: an input, an output, or saved by forward.
  bool operator==(const Slot&) const = default;
};

/// A part of a tensor with a place. In memory [batch, tokens, heads, dim], contiguous, the blocks
/// one after the other; Lse and Delta have no dim.
struct Tile {
  Tensor tensor = Tensor::Q;
  /// Sums or averages over part of the other side, in accumulator precision: Out and Lse over some
  /// keys; DQ, DK, DV over some pairs. A tile that is not partial is final, in the input dtype (Lse
  /// and Delta always in accumulator precision).
  bool partial = false;
  Heads heads;
  BlockIds blocks;  ///< Places in Blocks::q or Blocks::kv, ascending.
  int slot = -1;
  /// A partial as it travels under Wire::Input: rounded to the input dtype. Only copied to, sent,
  /// received, and merged or added from. See `travels_narrow`.
  bool narrow = false;
  bool operator==(const Tile&) const = default;
};

/// The part of a tile that an op touches: some of its heads, some of its blocks.
struct View {
  int tile = -1;
  Heads heads;
  BlockIds blocks;
  bool operator==(const View&) const = default;
};
using Views = SmallVector<View, 1>;
bool is_whole(const Tile& tile, const View& view);  ///< Does the view show all of its tile?

enum class OpKind : std::uint8_t {
  Send,        ///< src -> peer: one message of all views, one after the other
  Recv,        ///< dst <- peer
  Attend,      ///< q k v | out lse: merges attention of q over k, v into the partial (out, lse)
  AttendGrad,  ///< q k v dout lse delta | dq dk dv: adds the gradients of those pairs
  Merge,       ///< out lse | part_out part_lse: merges two partials by log-sum-exp
  Add,         ///< acc | part: acc += part, for gradients
  /// dst | src: same blocks and heads; casts an accumulator to the input dtype. May be in place:
  /// both whole tiles of one slot and dtype.
  Copy,
  Clear,  ///< dst: no key seen yet: (0, -inf) for a partial, 0 for a gradient
  Delta,  ///< delta | dout out lse: rowsum(dout * out); adds its rows to the gradient of sinks
  /// out lse | part_out part_lse: a partial over all keys becomes the result. Each may be in place.
  Finish,
  AttendAll,      ///< q k v | out lse: attention over all keys of q, finished, in one kernel call
  AttendGradAll,  ///< q k v dout lse delta | dq dk dv: attend_grad from nothing, rounded; one call
};

enum class Access : std::uint8_t { Read, Write, Update };

/// One operand of an op: its name in print, and what the op does to it.
struct Operand {
  std::string_view name;
  Access access;
};
/// Of a send and a receive: each of its views is such an operand.
std::span<const Operand> operands(OpKind kind);

std::string_view to_string(Pass pass);
std::string_view to_string(Tensor tensor);
std::string_view to_string(OpKind kind);

/// 0 is the compute lane; 1 and up are comm lanes (a communicator each under NCCL, a tag under
/// MPI).
using Lane = int;
inline constexpr Lane kCompute = 0;

/// A group of sends and receives that a communicator may replace by a better native collective.
enum class Collective : std::uint8_t { None, AllGather, ReduceScatter, AllToAll };
std::string_view to_string(Collective collective);

struct Op {
  OpKind kind = OpKind::Send;
  Lane lane = kCompute;
  int step = 0;    ///< Batch of a send or receive; row of the printed grid for all ops.
  Rank peer = -1;  ///< Send and Recv only.
  Collective collective = Collective::None;
  Views views;  ///< One per operand, in the order of `operands(kind)`; of a message one or more.
  /// The sums of queries (attend: out, lse; attend_grad: dq) begin with this op: its one kernel
  /// call writes them. Set by lowering.
  bool fresh_q = false;
  bool fresh_kv = false;  ///< attend_grad: likewise dk and dv.
  /// A message that needs no copy where ranks share memory and both of its ends say so. Send:
  /// nothing is written over what it sends before the run ends. Recv: nothing else writes its tile,
  /// which is not the caller's. Set by lowering.
  bool loan = false;
  bool operator==(const Op&) const = default;

  bool is_comm() const { return kind == OpKind::Send || kind == OpKind::Recv; }
  bool attends() const { return kind == OpKind::Attend || kind == OpKind::AttendAll; }
  bool attends_grad() const { return kind == OpKind::AttendGrad || kind == OpKind::AttendGradAll; }
};

/// Whether an op of this kind may have so many views.
bool takes(OpKind kind, std::size_t views);
/// What an op does to view `v`, which it has: as its operand says, but that a fresh sum is written.
Access access(const Op& op, std::size_t v);
bool writes(const Op& op, std::size_t v);              ///< Or updates.
std::string operand_name(OpKind kind, std::size_t v);  ///< Of a message: src, src1, src2 ..

/// All that one rank does in one pass.
struct RankProgram {
  Rank rank = 0;
  std::vector<Slot> slots;
  std::vector<Tile> tiles;
  std::vector<Op> ops;
  std::vector<int> inputs;   ///< Tiles the caller fills: Q, K, V, or in backward DOut.
  std::vector<int> outputs;  ///< Tiles the caller receives: Out (and Lse), or DQ, DK, DV.
  /// Tiles that forward leaves behind and backward finds: Q, K, V, Out, Lse, in the same order.
  std::vector<int> saved;
  bool operator==(const RankProgram&) const = default;
};

struct Plan {
  Problem problem;
  std::string strategy;
  Pass pass = Pass::Forward;
  Blocks blocks;
  std::vector<RankProgram> ranks;
  bool operator==(const Plan&) const = default;
};

/// Does a sum of this tensor travel `narrow`? The one place that says what `Problem::wire` asks
/// for; no for tensors of which there are no sums, and for log-sum-exps.
bool travels_narrow(const Problem& problem, Tensor tensor);

/// dtype and size of a tile, or of the part of it that a view shows. Bytes include the batch.
Dtype dtype_of(const Problem& problem, const Tile& tile);
std::int64_t dim_of(const Problem& problem, Tensor tensor);  ///< 1 for Lse and Delta.
const std::vector<Block>& blocks_of(const Blocks& blocks, Tensor tensor);
std::int64_t tokens_of(const Blocks& blocks, Tensor tensor, const BlockIds& ids);
std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const Tile& tile);

/// Tokens of all blocks, added up, for who asks of many tiles: O(runs) each, however many blocks.
class TokenCounts {
 public:
  explicit TokenCounts(const Blocks& blocks);
  std::int64_t of(Tensor tensor, const BlockIds& ids) const;

 private:
  std::vector<std::int64_t> before_q_;  ///< Of the blocks before each, and of all.
  std::vector<std::int64_t> before_kv_;
};
std::int64_t bytes_of(const Problem& problem, const TokenCounts& counts, const Tile& tile);
std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const Tile& tile,
                      const View& view);
std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const RankProgram& program,
                      const Op& message);

/// What a program moves and holds.
struct Traffic {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t peak_slot_bytes = 0;  ///< Slots that are not external.
  std::int64_t visible_pairs = 0;    ///< Attended (batch entry, query head, query, key).
  int steps = 0;                     ///< Rows of the printed grid.
};
Traffic traffic(const Problem& problem, const Blocks& blocks, const RankProgram& program);

/// Bytes that a program sends to ranks of other nodes, where each `ranks_per_node` neighbours are a
/// node; the last may have fewer. Requires ranks_per_node >= 1.
std::int64_t sent_between_nodes(const Problem& problem, const Blocks& blocks,
                                const RankProgram& program, int ranks_per_node);

}  // namespace armillary::plan
