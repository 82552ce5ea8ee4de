// Proofs of a group, in three steps:
//
//   1. every rank gathers the digests of the programs that all ranks will run (their claims);
//   2. the prover of each pass compares them with the programs it proves or finds recorded;
//   3. every rank gathers the verdicts of all ranks and takes the gravest, so all go on or all
//   throw.
#include "armillary/proof/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/proof/proof_file.h"
#include "armillary/proof/verdict.h"

namespace armillary::proof {
namespace {

/// The rank that proves a pass. It depends on the problem, so that the proofs of many masks are
/// spread over the ranks.
int prover_of(const Digest& key, std::size_t pass, int world) {
  return static_cast<int>((key.low + pass) % static_cast<std::uint64_t>(world));
}

/// Judges the passes that this rank has to prove, against the claims of all ranks. Returns the
/// first error, or an empty text.
std::string judge(const RankPrograms& own, const std::vector<Claims>& claims, plan::Rank rank,
                  const std::string& folder) {
  if (!own.finds_saved) {
    return fmt::format("rank {}: backward or replay does not find what forward saves", rank);
  }
  const auto world = static_cast<int>(claims.size());
  std::optional<Programs> recorded;
  for (std::size_t p = 0; p < kPasses.size(); ++p) {
    if (prover_of(own.key, p, world) != rank) continue;
    if (!folder.empty() && !recorded) {
      recorded = load_proof(folder, own.planner.problem(), own.planner.strategy());
    }
    // A proof in the folder replaces one that this process makes.
    std::shared_ptr<const PassProof> own_proof;
    if (!recorded) {
      own_proof = own.proofs->get(kPasses[p]);
      if (!own_proof->wrong.empty()) return own_proof->wrong;
    }
    // Either way, each rank must run the program that was proved.
    const std::vector<Digest>& proved = recorded ? (*recorded)[p] : own_proof->programs;
    for (int r = 0; r < world; ++r) {
      if (claims[r][p] == proved[r]) continue;
      const std::string where = recorded
                                    ? "recorded in " + proof_path(folder, own.key) +
                                          " is another; run armillary verify --save-proof again"
                                    : "proved was another: ranks were built differently";
      return fmt::format("rank {} would run a {} program of digest {}; {}", r,
                         to_string(kPasses[p]), to_string(claims[r][p]), where);
    }
  }
  return "";
}

/// The `mine` of all ranks, by rank. T is copied as bytes.
template <class T>
std::vector<T> gather(comm::Communicator& comm, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(comm.world()));
  comm::all_gather(comm, std::as_bytes(std::span(&mine, 1)),
                   std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

void prove_together(comm::Communicator& comm, const RankPrograms& own, const std::string& folder) {
  Verdict mine;
  const auto refuse = [&](Finding finding, std::string_view why) {
    if (why.empty()) return;
    mine.raise(finding, fmt::format("attention: {}; a proved plan is required on every rank", why));
  };
  const std::vector<Claims> claims = gather(comm, own.programs);
  try {
    refuse(Finding::RefusedPlan, judge(own, claims, comm.rank(), folder));
  } catch (const InvalidArgument& error) {  // A recorded proof that cannot be used.
    refuse(Finding::RefusedInput, error.what());
  } catch (const IoError& error) {
    refuse(Finding::RefusedInput, error.what());
  } catch (const std::exception& error) {
    refuse(Finding::RefusedPlan, error.what());
  }
  Verdict worst;
  for (const Verdict& of_rank : gather(comm, mine)) worst.raise(of_rank.finding, of_rank.text);
  throw_together(comm, worst);
}

void prove_ahead(const comm::Communicator& comm, const Digest& key, Proofs& proofs,
                 const std::string& folder) {
  std::error_code error;  // Ignored: the run that needs the proof throws.
  if (!folder.empty() && std::filesystem::exists(proof_path(folder, key), error)) return;
  for (std::size_t p = 0; p < kPasses.size(); ++p) {
    if (prover_of(key, p, comm.world()) == comm.rank()) proofs.start(kPasses[p]);
  }
}

}  // namespace armillary::proof
