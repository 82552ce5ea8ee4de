// grid.h: the programs of a world as a grid to read: a row per step, a column per rank.
//
//             rank 0                     rank 1
//   step 0    page1>r1 page0<r1          page0>r0 page1<r0
//   step 1    fetch(table{0,1})          fetch(table{0,1})   <-- HERE rank 1: reads page 0
//
//   page1>r{2,3}       send block 1 of `page` to ranks 2 and 3
//   page0<r1           receive block 0 from rank 1
//   fetch(table{0,1})  any other op: its kind and its first operand, or the form that the
//                      vocabulary has for it (KindWord::form), with the ranks of a joint op
//   page1[0:2]         heads 0 and 1, where these are not all heads
//
// Ops stand in program order; ops that print as one token stand at the place of the first of them.
// Tensors with a joint name (Vocabulary::joint_names) print as one if they show the same part.
#pragma once

#include <string>
#include <vector>

#include "armillary/plan/program/diagnostics.h"
#include "armillary/plan/program/measures.h"

namespace armillary::plan {

/// The whole grid. Up to six ranks fit into lines of about 160 columns; many ops of one rank and
/// step wrap. The line of the op of `at`, if given, is marked with `<-- HERE rank r: text`; a
/// diagnostic without an op is marked at the end. Never throws for a broken program: indices out of
/// range print as `?`. Cost: O(ops).
std::string to_string(const World& world, const Diagnostic* at = nullptr);

/// One word of the grid, and the ops of the rank that it stands for (indices, ascending).
struct GridWord {
  int step = 0;
  std::string text;
  std::vector<int> ops;
};
/// The words of one rank by step, in the order in which the grid has them.
std::vector<GridWord> grid_words(const World& world, Rank rank);

/// A single op, for messages. Two ops are not joined here: `k1>r3`.
std::string to_string(const World& world, Rank rank, const Op& op);

}  // namespace armillary::plan
