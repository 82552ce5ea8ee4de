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
// The program of a rank is one of the machine (program/program.h) in the words of attention
// (words.h): Q, K, V or, in backward, dOut are its inputs; Out (and Lse), or dQ, dK, dV its
// outputs; forward saves Q, K, V, Out and Lse, in this order, and backward finds them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/plan/blocks.h"
#include "armillary/plan/problem.h"
#include "armillary/plan/program/measures.h"
#include "armillary/plan/program/program.h"
#include "armillary/plan/words.h"

namespace armillary::plan {

/// Replay runs the messages of forward again while the results of attention are given
/// (passes/replay.h).
enum class Pass : std::uint8_t { Forward, Backward, Replay };

std::string_view to_string(Pass pass);  ///< `forward`, `backward`, `replay`.

/// The programs of all ranks for one pass of one problem.
struct Plan {
  Problem problem;
  std::string strategy;
  Pass pass = Pass::Forward;
  Blocks blocks;
  std::vector<RankProgram> ranks;
  bool operator==(const Plan&) const = default;
};

/// True if a partial result of this tensor travels `narrow` under the problem's transfer dtype.
/// False for log-sum-exps and for tensors that are never partial. All readers of
/// `Problem::transfer_dtype` ask here.
bool travels_narrow(const Problem& problem, Tensor tensor);

/// Element type of a tile: see Tile::partial and Tile::narrow.
Dtype dtype_of(const Problem& problem, const Tile& tile);
/// Elements per token and head of a tensor: head_dim, value_dim, or 1 for Lse and Delta.
std::int64_t dim_of(const Problem& problem, Tensor tensor);
/// The blocks that a tensor is counted in: Blocks::q or Blocks::kv.
const std::vector<Block>& blocks_of(const Blocks& blocks, Tensor tensor);
/// Tokens of the listed blocks. Cost: O(blocks of the list).
std::int64_t tokens_of(const Blocks& blocks, Tensor tensor, const BlockIds& ids);

/// The sizes of all tensors, for readers that know no attention. Requires a valid problem.
Measures measures_of(const Problem& problem, const Blocks& blocks);

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
