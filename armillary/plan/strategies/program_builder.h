// program_builder.h: collects the tiles and ops of one rank, then orders them and places the tiles.
//
// A strategy says what happens in which step. The builder does the rest, in one place for all
// strategies:
//
//   order   Ops are sorted by step. Within a step messages come before compute ops, so that they
//           overlap; otherwise ops keep the order in which they were added.
//   slots   A tile lives from the first step that touches it to the last. Then its slot goes to the
//           next tile of the same tensor.
//
// Double buffering is not written anywhere. It follows from lifetimes: the tile that a step reads
// and the tile that it receives are alive at the same time.
#pragma once

#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// Collects the program of one rank in one pass. Steps are >= 0, and ops may be added in any order
/// of steps. Tiles are named by the ids that the functions below return, which are valid until
/// `finish`.
class ProgramBuilder {
 public:
  /// `problem` and `blocks` must outlive the builder.
  ProgramBuilder(const Problem& problem, const Blocks& blocks, Rank rank);

  /// A new tile that lives between its first and its last use.
  int tile(Tensor tensor, bool partial, Heads heads, BlockIds blocks);
  /// A tile in a tensor of the caller: one that is given, or one that is to be filled.
  int input(Tensor tensor, Heads heads, BlockIds blocks);
  int output(Tensor tensor, Heads heads, BlockIds blocks);
  /// Forward: keeps an existing tile to the end, for backward. The order of calls is the order of
  /// RankProgram::saved.
  void save(int tile);
  /// Backward: a tile that forward saved. Call in the order in which forward saved them.
  int saved(Tensor tensor, Heads heads, BlockIds blocks);

  /// All of a tile; some of its blocks with all its heads; some heads of some blocks.
  View whole(int tile) const;
  View part(int tile, BlockIds blocks) const;
  View part(int tile, Heads heads, BlockIds blocks) const;
  const Tile& operator[](int tile) const { return program_.tiles[tile]; }

  /// Each adds one op, unless one of its views has no blocks or no heads. A message that is dropped
  /// must be dropped at its other end too: both ends must give views of the same blocks and heads.
  void send(int step, Lane lane, Rank peer, View view, Collective collective = Collective::None);
  void recv(int step, Lane lane, Rank peer, View view, Collective collective = Collective::None);
  /// `views` are in the order of operands(kind).
  void compute(int step, OpKind kind, Views views);

  /// Partial results between ranks (Problem::transfer_dtype): a tile for one that arrives, and the
  /// send of one that is complete in the step before `step`. If its tensor travels narrow
  /// (travels_narrow), the sent copy is rounded there, after all other ops of that step, and the
  /// arriving tile is narrow.
  int arriving_sum(Tensor tensor, Heads heads, BlockIds blocks);
  void send_sum(int step, Lane lane, Rank peer, View sum, Collective collective = Collective::None);

  /// Orders the ops, drops tiles that no op touches, and places the others in slots. The builder
  /// must not be used afterwards. Cost: O(ops + tiles log tiles).
  RankProgram finish();

 private:
  int external(std::vector<int>& role, Tensor tensor, Heads heads, BlockIds blocks);
  void add_message(Op message, View view);
  void add(Op op);
  void sort_ops();
  void drop_unused_tiles();
  void place_tiles();

  const Problem& problem_;
  const Blocks& blocks_;
  RankProgram program_;
  /// Copies of send_sum that round to the input dtype; added last, so last in their steps.
  std::vector<Op> narrowing_copies_;
};

}  // namespace armillary::plan
