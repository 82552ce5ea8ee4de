// program.h: what one rank does, as plain data: the machine that every vocabulary runs on.
//
//   rank program   slots   buffers; `external` slots are tensors of the caller
//                  tiles   (tensor, heads, blocks) placed in a slot; a slot holds one at a time.
//                          The slot of a result of the caller may hold another tile of the same
//                          size before the result
//                  ops     actions on views of tiles, in program order
//
// The machine knows sends and receives, and that a vocabulary may have joint ops: actions of a
// whole group of ranks, such as collectives. All other kinds of ops, and all tensors, are numbers;
// a vocabulary (vocabulary.h) says which operands they have and what they are called.
//
// Meaning of order. Ops of one lane keep their order. Ops of different lanes wait for each other
// only through slots (hazards.h): an op waits for every earlier op of the rank that wrote what it
// reads (RAW), or that read or wrote what it writes (WAR, WAW). Writing a tile ends the tile that
// was in its slot before. Sends and receives of one lane with the same `step` are one batch
// (batches.h): they start together, and batches of a lane start in order. Messages of one lane from
// one rank to another match in order: the n-th send meets the n-th receive; so do joint ops of a
// lane and a group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "armillary/core/small_vector.h"
#include "armillary/plan/program/block_ids.h"
#include "armillary/plan/program/word.h"

namespace armillary::plan {

using Rank = int;  ///< Index in the group, 0 <= rank < world.

/// Half-open range [begin, end) of the axis along which tiles of a tensor are cut besides blocks:
/// query heads or KV heads of attention, columns of a table.
struct Heads {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
  bool contains(const Heads& other) const { return begin <= other.begin && other.end <= end; }
  bool operator==(const Heads&) const = default;
};

/// A buffer of one rank.
struct Slot {
  std::int64_t bytes = 0;
  bool external = false;  ///< A tensor of the caller: an input, an output, or saved by forward.
  bool operator==(const Slot&) const = default;
};

/// A part of a tensor and its slot. In memory it is [batch, tokens, heads, dim], contiguous, the
/// blocks one after the other; tensors with one number per token and head have no dim.
struct Tile {
  TensorId tensor{};
  /// A sum that is not complete, in accumulator precision. A tile that is not partial is final.
  bool partial = false;
  Heads heads;
  BlockIds blocks;  ///< Indices into the blocks of the tensor's side, ascending.
  int slot = -1;    ///< Index into RankProgram::slots.
  /// A partial result rounded to the dtype of final tiles, in which it travels. It may only be read
  /// and written by operands that say so (Operand::may_be_narrow).
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
/// True if the view shows all of its tile.
inline bool is_whole(const Tile& tile, const View& view) {
  return view.heads == tile.heads && view.blocks == tile.blocks;
}

/// 0 is the compute lane; 1 and up are communication lanes. Messages of different lanes may
/// overtake each other.
using Lane = std::int16_t;
inline constexpr Lane kCompute = 0;

/// The collective that a message is a part of. Messages of an AllToAll in one batch with one peer
/// are joined into one (passes/lower.h); both ends of a message are of one collective.
enum class Collective : std::uint8_t { None, AllGather, ReduceScatter, AllToAll };
std::string_view to_string(Collective collective);

/// Operands have one of at most two sides, such as queries and keys (Vocabulary::sides).
inline constexpr std::size_t kMostSides = 2;

/// One action of one rank. A plan of 1,024 ranks has ten million, so an op takes one cache line.
struct Op {
  Kind kind{};
  Lane lane = kCompute;
  int step = 0;    ///< Batch of a send or receive; row of the printed grid for all ops.
  Rank peer = -1;  ///< The other rank of a message; the place in RankProgram::groups of a joint op.
  Collective collective = Collective::None;
  /// By side: the op initialises the accumulators of the side instead of adding to them. It is then
  /// one kernel call. Set by lowering; for kinds that may (KindWord::begins).
  std::array<bool, kMostSides> init{};
  /// Send, receive: the message needs no copy if ranks share memory and both of its ends say so. A
  /// send says that nothing is written over the sent view before the run ends. A receive says that
  /// nothing else writes its tile, which is not the caller's. Set by lowering.
  bool zero_copy = false;
  Views views;  ///< One per operand, in the order of the vocabulary; one or more of a message.
  bool operator==(const Op&) const = default;

  bool is_comm() const { return kind.number() <= kRecv.number(); }
};
static_assert(sizeof(Op) <= 64);

struct Vocabulary;

/// The actions of one rank, with their memory.
struct RankProgram {
  const Vocabulary* words = nullptr;  ///< Meaning of kinds and tensors; must outlive the program.
  Rank rank = 0;
  std::vector<Slot> slots;
  std::vector<Tile> tiles;
  std::vector<Op> ops;
  std::vector<int> inputs;   ///< Tiles that the caller fills.
  std::vector<int> outputs;  ///< Tiles that the caller receives.
  /// Tiles that a program leaves behind for a later one, which finds them in the same order.
  std::vector<int> saved;
  /// The groups of joint ops, each as its ranks, ascending, with this one among them.
  std::vector<std::vector<Rank>> groups;
  bool operator==(const RankProgram&) const = default;
};

/// Rows of the printed grid of a program: steps that have ops. Cost: O(ops).
int count_steps(const RankProgram& program);

}  // namespace armillary::plan
