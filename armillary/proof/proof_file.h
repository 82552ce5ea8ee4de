// proof_file.h: a proof that is made once and kept, for runs too large to prove anew each time.
//
//   DIR/<digest of problem and strategy>.proof.json
//   {"format_version":1,"version":"0.1.0","proof_version":1,"strategy":"ring","problem":{..},
//    "programs":{"forward":["<digest of rank 0>", ..],"backward":[..],"replay":[..]},
//    "digest":"<of all that stands before>"}
//
// A recorded proof says which programs were proved, by their digests. It replaces the proof, not
// the comparison: every rank still compares the program that it runs with the one that was proved.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "armillary/proof/prove.h"

namespace armillary::proof {

/// Digests of the proved programs, by pass and rank.
using Programs = std::array<std::vector<Digest>, kPasses.size()>;

/// Where the proof of a problem and strategy lies in `folder`.
std::string proof_path(const std::string& folder, const Digest& key);

/// Proves all passes and writes the file, and `folder` if it is not there. Returns the path.
/// @throws PlanError with the first broken rule, and nothing is written; IoError.
std::string save_proof(const std::string& folder, const plan::Problem& problem,
                       const plan::Strategy& strategy);

/// What is recorded of this problem and strategy; nothing if the folder has no such file.
/// @throws InvalidArgument, naming the file, if it is of another version, cut off, edited, or of
/// another problem or strategy; IoError if the folder is none, or the file cannot be read.
std::optional<Programs> load_proof(const std::string& folder, const plan::Problem& problem,
                                   const plan::Strategy& strategy);

}  // namespace armillary::proof
