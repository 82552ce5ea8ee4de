// microbatch.h: the sequences that a rank along dp takes in one pass, joined into one.
//
//   sequences first, first + 1, ..  --documents--> one mask --layout--> positions of a rank
//                                   '--rows(positions)----------------> its tokens, labels
//
// Attention and its proof see one sequence of all tokens, whose mask shows no pair of two
// sequences. So each may have documents of its own, every mask can be joined, and a causal mask
// under `zigzag` is balanced over the joined length as over one sequence. A rank that owns whole
// sequences sends nothing of them: tiles that nobody needs do not travel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "armillary/model/model.h"
#include "armillary/plan/problem.h"
#include "armillary/train/data.h"
#include "armillary/train/recipe_parts.h"

namespace armillary::train {

/// The part of one rank along cp.
struct Microbatch {
  model::Fields batch;       ///< Its tokens, each [1, L, ..].
  at::Tensor positions_L;    ///< int64: the place of each in its own sequence.
  plan::Problem problem;     ///< Attention over all tokens of all ranks along cp.
  std::int64_t targets = 0;  ///< Targets among its tokens.
  at::Tensor sequence_L;     ///< int64: of each token, the number of its sequence, from 0 on.
  std::int64_t sequences = 0;
  std::uint64_t digest = 0;  ///< Equal on ranks that read the same sequences; never 0.
};

/// A rank along cp, and the attention that it computes.
struct MicrobatchPlace {
  cost::ModelAttention attention;
  int rank = 0;
  int world = 1;
};

/// Sequences from `first` on, training.local_batch_size of them. Reads the tokens of the place
/// alone, if the data have parts. @throws InvalidArgument as checked_parts and attention_problem.
Microbatch read_microbatch(const Data& data, std::int64_t first, const model::Model& model,
                           const Recipe& recipe, const MicrobatchPlace& place);

}  // namespace armillary::train
