// plan.h: sequence-parallel attention as plain data.
//
// A plan says, for every rank, in order, what to send, receive, attend to and merge. It holds no
// tensors, streams or pointers, so it can be printed, compared, verified and executed.
//
//   Problem --strategy--> Plan --lower--> Plan --verify-->   a proof, or what is wrong  (verify.h)
//                                           |----execute-->  tensors     (runtime/executor.h)
//                                           '----print---->  a grid to read, JSON (text.h, json.h)
//
// Lowering (passes/lower.h) makes a plan with fewer ops; it is a plan like any other.
//
//   rank program   slots   buffers; `external` slots are tensors of the caller
//                  tiles   (tensor, heads, blocks) placed in a slot; a slot holds one at a time.
//                          The slot of a result of the caller may hold another tile of the same
//                          size before the result
//                  ops     actions on views of tiles, in program order
//
// Meaning of order. Ops of one lane keep their order. Ops of different lanes wait for each other
// only through slots: an op waits for every earlier op of the rank that wrote what it reads (RAW),
// or that read or wrote what it writes (WAR, WAW). Writing a tile ends the tile that was in its
// slot before. Sends and receives of one lane with the same `step` are one batch: they start
// together, and batches of a lane start in order. Messages of one lane from one rank to another
// match in order: the n-th send meets the n-th receive.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/plan/block_ids.h"
#include "armillary/plan/blocks.h"
#include "armillary/plan/problem.h"

namespace armillary::plan {

/// Replay runs the messages of forward again while the results of attention are given
/// (passes/replay.h).
enum class Pass : std::uint8_t { Forward, Backward, Replay };

/// The tensor that a tile is a part of. Lse is the log-sum-exp of a query's scores, Delta is
/// rowsum(dout * out), D.. are gradients.
enum class Tensor : std::uint8_t { Q, K, V, Out, Lse, DOut, Delta, DQ, DK, DV };
/// True for K, V, DK, DV, which have key blocks and KV heads.
constexpr bool is_kv(Tensor tensor) {
  return tensor == Tensor::K || tensor == Tensor::V || tensor == Tensor::DK || tensor == Tensor::DV;
}

/// A buffer of one rank.
struct Slot {
  std::int64_t bytes = 0;
  bool external = false;  ///< A tensor of the caller: an input, an output, or saved by forward.
  bool operator==(const Slot&) const = default;
};

/// A part of a tensor and its slot. In memory it is [batch, tokens, heads, dim], contiguous, the
/// blocks one after the other; Lse and Delta have no dim.
struct Tile {
  Tensor tensor = Tensor::Q;
  /// A partial result, in accumulator precision: Out and Lse over some of the keys; DQ, DK, DV
  /// summed over some of the pairs. A tile that is not partial is final, in the input dtype (Lse
  /// and Delta always in accumulator precision).
  bool partial = false;
  Heads heads;      ///< Query heads or KV heads, by the tensor.
  BlockIds blocks;  ///< Indices into Blocks::q or Blocks::kv, ascending.
  int slot = -1;    ///< Index into RankProgram::slots.
  /// A partial result rounded to the input dtype, in which it travels under Wire::Input. It may
  /// only be copied to, sent, received, and merged or added from. See `travels_narrow`.
  bool narrow = false;
  bool operator==(const Tile&) const = default;
};

/// The part of a tile that an op touches: some of its heads, some of its blocks.
struct View {
  int tile = -1;  ///< Index into RankProgram::tiles.
  Heads heads;
  BlockIds blocks;
  bool operator==(const View&) const = default;
};
using Views = SmallVector<View, 1>;
bool is_whole(const Tile& tile, const View& view);  ///< True if the view shows all of its tile.

/// The kinds of ops, with the names of their operands in the order of `operands`. A bar stands
/// between the operands that an op only reads and those that it writes.
enum class OpKind : std::uint8_t {
  Send,        ///< src -> peer: one message of all views, one after the other
  Recv,        ///< dst <- peer
  Attend,      ///< q k v | out lse: merges attention of q over k, v into the partial (out, lse)
  AttendGrad,  ///< q k v dout lse delta | dq dk dv: adds the gradients of those pairs
  Merge,       ///< out lse | part_out part_lse: merges the second partial result into the first
  Add,         ///< acc | part: acc += part, for gradients
  /// dst | src: same blocks and heads; casts an accumulator to the input dtype. May be in place:
  /// both whole tiles of one slot and dtype.
  Copy,
  Clear,  ///< dst: becomes the empty sum: 0, or -inf for lse
  Delta,  ///< delta | dout out lse: rowsum(dout * out); adds its rows to the gradient of sinks
  /// out lse | part_out part_lse: a partial over all keys becomes the result. Each may be in place.
  Finish,
  AttendAll,      ///< q k v | out lse: attention over all keys of q, finished, in one kernel call
  AttendGradAll,  ///< q k v dout lse delta | dq dk dv: attend_grad from nothing, rounded; one call
};

/// Effect of an op on an operand. Update reads the old value and writes a new one.
enum class Access : std::uint8_t { Read, Write, Update };

/// One operand of an op: its name in print, the effect of the op on it, and the tile that it takes.
struct Operand {
  std::string_view name;
  Access access;
  std::optional<Tensor> tensor = std::nullopt;  ///< Without a tensor the operand takes any tile.
  bool partial = false;  ///< Required Tile::partial of an operand with a tensor.
};
/// The operands of an op, in the order of its views. A send or receive has one operand, and each of
/// its views, however many, is such an operand. Code that needs a certain operand takes its place
/// from the constants of operands.h: `op.views[AttendOperand::kOut]`.
std::span<const Operand> operands(OpKind kind);

/// Names as they are printed and written in JSON: `forward`, `dq`, `attend_grad_all`.
std::string_view to_string(Pass pass);
std::string_view to_string(Tensor tensor);
std::string_view to_string(OpKind kind);

/// 0 is the compute lane; 1 and up are communication lanes. Messages of different lanes may
/// overtake each other.
using Lane = std::int16_t;
inline constexpr Lane kCompute = 0;

/// A group of sends and receives that a communicator may replace by a better native collective.
enum class Collective : std::uint8_t { None, AllGather, ReduceScatter, AllToAll };
std::string_view to_string(Collective collective);

/// One action of one rank. A plan of 1,024 ranks has ten million, so an op takes one cache line.
struct Op {
  OpKind kind = OpKind::Send;
  Lane lane = kCompute;
  int step = 0;    ///< Batch of a send or receive; row of the printed grid for all ops.
  Rank peer = -1;  ///< Send and Recv only.
  Collective collective = Collective::None;
  /// attend, attend_grad: the op initialises the accumulators of queries (out and lse, or dq)
  /// instead of adding to them. It is then one kernel call. Set by lowering.
  bool init_q = false;
  bool init_kv = false;  ///< attend_grad: likewise for dk and dv.
  /// Send, recv: the message needs no copy if ranks share memory and both of its ends say so. A
  /// send says that nothing is written over the sent view before the run ends. A receive says that
  /// nothing else writes its tile, which is not the caller's. Set by lowering.
  bool zero_copy = false;
  Views views;  ///< One per operand, in the order of `operands(kind)`; one or more of a message.
  bool operator==(const Op&) const = default;

  bool is_comm() const { return kind == OpKind::Send || kind == OpKind::Recv; }
  bool attends() const { return kind == OpKind::Attend || kind == OpKind::AttendAll; }
  bool attends_grad() const { return kind == OpKind::AttendGrad || kind == OpKind::AttendGradAll; }
};
static_assert(sizeof(Op) <= 64);

/// True if an op of this kind may have so many views.
bool takes(OpKind kind, std::size_t views);
/// Effect of an op on its view `v`: that of the operand, but an accumulator that the op initialises
/// is written, not updated. Requires v < op.views.size().
Access access(const Op& op, std::size_t v);
/// Name of view `v` of an op: that of its operand; the views of a message are src, src1, src2 ..
std::string operand_name(OpKind kind, std::size_t v);

/// The actions of one rank in one pass, with their memory.
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

/// The programs of all ranks for one pass of one problem.
struct Plan {
  Problem problem;
  std::string strategy;
  Pass pass = Pass::Forward;
  Blocks blocks;
  std::vector<RankProgram> ranks;
  bool operator==(const Plan&) const = default;
};

/// True if a partial result of this tensor travels `narrow` under the problem's wire. False for
/// log-sum-exps and for tensors that are never partial. All readers of `Problem::wire` ask here.
bool travels_narrow(const Problem& problem, Tensor tensor);

/// Element type of a tile: see Tile::partial and Tile::narrow.
Dtype dtype_of(const Problem& problem, const Tile& tile);
/// Elements per token and head of a tensor: head_dim, value_dim, or 1 for Lse and Delta.
std::int64_t dim_of(const Problem& problem, Tensor tensor);
/// The blocks that a tensor is counted in: Blocks::q or Blocks::kv.
const std::vector<Block>& blocks_of(const Blocks& blocks, Tensor tensor);
/// Tokens of the listed blocks. Cost: O(blocks of the list).
std::int64_t tokens_of(const Blocks& blocks, Tensor tensor, const BlockIds& ids);

/// Tokens of lists of blocks, for callers with many lists: prefix sums make each O(runs).
class TokenCounts {
 public:
  explicit TokenCounts(const Blocks& blocks);
  std::int64_t of(Tensor tensor, const BlockIds& ids) const;

 private:
  std::vector<std::int64_t> before_q_;  ///< Tokens of the blocks before each; last, of all blocks.
  std::vector<std::int64_t> before_kv_;
};

/// Bytes of a tile, of the part of it that a view shows, or of all views of a message. They include
/// all batch entries. @throws InvalidArgument if they do not fit into 63 bits.
std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const Tile& tile);
std::int64_t bytes_of(const Problem& problem, const TokenCounts& counts, const Tile& tile);
std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const Tile& tile,
                      const View& view);
std::int64_t bytes_of(const Problem& problem, const Blocks& blocks, const RankProgram& program,
                      const Op& message);
/// Bytes of each tile of a program, by tile. Cost: O(blocks of the tiles), or O(all blocks and the
/// runs of the tiles) if that is less. @throws InvalidArgument as bytes_of().
std::vector<std::int64_t> tile_bytes(const Problem& problem, const Blocks& blocks,
                                     const RankProgram& program);

/// Rows of the printed grid of a program: steps that have ops. Cost: O(ops).
int count_steps(const RankProgram& program);

/// Totals of one program: bytes moved, memory held, work done.
struct Traffic {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t peak_slot_bytes = 0;  ///< Sum of the slots that are not external.
  std::int64_t visible_pairs = 0;    ///< Attended (batch entry, query head, query, key).
  int steps = 0;                     ///< As count_steps().
};
/// Cost: O(ops), and one area of the mask for every op that attends.
Traffic traffic(const Problem& problem, const Blocks& blocks, const RankProgram& program);

/// Bytes that a program sends to ranks of other nodes. A node is `ranks_per_node` consecutive
/// ranks; the last may have fewer. Requires ranks_per_node >= 1.
std::int64_t sent_between_nodes(const Problem& problem, const Blocks& blocks,
                                const RankProgram& program, int ranks_per_node);

}  // namespace armillary::plan
