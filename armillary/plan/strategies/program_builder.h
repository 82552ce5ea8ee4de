// program_builder.h: collects the tiles and ops of one rank, then orders them and places the tiles.
//
// A strategy says what happens in which step; the builder does the rest in one place for all of
// them: within a step sends and receives come before compute, so that they overlap; a tile that is
// dead leaves its slot to the next one of the same kind. Double buffering is not written anywhere:
// it is what lifetimes give, since the tile that a step reads and the tile it receives are alive
// together.
#pragma once

#include <vector>

#include "armillary/plan/plan.h"

namespace armillary::plan {

class ProgramBuilder {
 public:
  ProgramBuilder(const Problem& problem, const Blocks& blocks, Rank rank);

  /// A new tile that lives between its first and its last use. Returns its id.
  int tile(Tensor tensor, bool partial, Heads heads, BlockIds blocks);
  int input(Tensor tensor, Heads heads, BlockIds blocks);
  int output(Tensor tensor, Heads heads, BlockIds blocks);
  /// Forward: keeps an existing tile to the end, for backward. Order of calls is the order of
  /// `saved`.
  void save(int tile);
  /// Backward: a tile that forward saved.
  int saved(Tensor tensor, Heads heads, BlockIds blocks);

  View whole(int tile) const;
  View part(int tile, BlockIds blocks) const;
  View part(int tile, Heads heads, BlockIds blocks) const;
  const Tile& operator[](int tile) const { return program_.tiles[tile]; }

  /// Adds an op, unless one of its views is empty.
  void send(int step, Lane lane, Rank peer, View view, Collective collective = Collective::None);
  void recv(int step, Lane lane, Rank peer, View view, Collective collective = Collective::None);
  void compute(int step, OpKind kind, Views views);

  /// Sums on the wire (Wire). A tile for a sum that arrives; a sum that is complete in the step
  /// before it leaves.
  int arriving_sum(Tensor tensor, Heads heads, BlockIds blocks);
  void send_sum(int step, Lane lane, Rank peer, View sum, Collective collective = Collective::None);

  /// Orders the ops, places the tiles. The builder is spent.
  RankProgram finish();

 private:
  int external(std::vector<int>& role, Tensor tensor, Heads heads, BlockIds blocks);
  void message(OpKind kind, int step, Lane lane, Rank peer, View view, Collective collective);
  void add(Op op);
  void sort_ops();
  void drop_unused_tiles();
  void place_tiles();

  const Problem& problem_;
  const Blocks& blocks_;
  RankProgram program_;
  std::vector<Op> narrowings_;  ///< Copies, each after all other ops of its step.
};

}  // namespace armillary::plan
