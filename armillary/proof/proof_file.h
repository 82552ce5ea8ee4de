// proof_file.h: proofs recorded in files, for problems that are too large to prove in every run.
//
//   DIR/<digest of problem and strategy>.proof.json
//   {"format_version":1,"version":"0.1.0","proof_version":1,"strategy":"ring","problem":{..},
//    "programs":{"forward":["<digest of rank 0>", ..],"backward":[..],"replay":[..]},
//    "digest":"<of all that stands before>"}
//
// A file lists the digests of the programs that were proved, by pass and rank. It replaces the
// proof, not the comparison: before a run, the program of every rank is still compared with the one
// that was proved. A file cannot be used by another version of the library or of proofs.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "armillary/proof/prove.h"

namespace armillary::proof {

/// Digests of the proved programs, by pass (in the order of kPasses) and rank.
using Programs = std::array<std::vector<Digest>, kPasses.size()>;

/// Path of the proof in `folder`; `key` is the digest of its problem and strategy.
std::string proof_path(const std::string& folder, const Digest& key);

/// Proves all passes of all ranks and writes the file, and `folder` if it is missing. Returns the
/// path. Cost: that of three calls of `verify`.
/// @throws PlanError with the first broken rule, and nothing is written; IoError if the file cannot
/// be written.
std::string save_proof(const std::string& folder, const plan::Problem& problem,
                       const plan::Strategy& strategy, const ProgramSource& source = {});

/// Reads the recorded proof of a problem and strategy; nothing if the folder has no such file.
/// @throws InvalidArgument, naming the file, if it is of another version, cut off, edited, or of
/// another problem or strategy; IoError if `folder` is not a folder, or the file cannot be read.
std::optional<Programs> load_proof(const std::string& folder, const plan::Problem& problem,
                                   const plan::Strategy& strategy);

}  // namespace armillary::proof
