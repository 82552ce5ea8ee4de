#include "armillary/proof/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
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
#include "armillary/proof/proofs.h"
#include "armillary/proof/verdict.h"

namespace armillary::proof {
namespace {

using Claims = std::array<Digest, kPasses.size()>;  ///< The programs of one rank, by pass.

/// What this group has proved, and which programs this rank had then. The same keys on all ranks,
/// who call in the same order. The oldest are forgotten, and proved again if they are met again.
class Proved {
 public:
  const Claims* find(const Digest& key) const {
    const auto found = claims_.find(key);
    return found == claims_.end() ? nullptr : &found->second;
  }
  void add(const Digest& key, const Claims& claims) {
    constexpr std::size_t kMost = 1024;
    claims_.emplace(key, claims);
    order_.push_back(key);
    if (order_.size() > kMost) {
      claims_.erase(order_.front());
      order_.pop_front();
    }
  }

 private:
  std::map<Digest, Claims> claims_;
  std::deque<Digest> order_;
};

/// Every pass is proved by one rank; which, goes round with the problem, so that the proofs of many
/// masks are spread over the ranks.
int prover_of(const Digest& key, std::size_t pass, int world) {
  return static_cast<int>((key.low + pass) % static_cast<std::uint64_t>(world));
}

Proofs::Make prover(const plan::Planner& planner, plan::Pass pass) {
  return [planner, pass] { return prove(planner, pass); };
}

/// What this rank finds wrong with the passes that it proves; empty if nothing.
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
    std::shared_ptr<const PassProof> made;
    if (!recorded) {
      made = Proofs::of_this_process().get(own.key, kPasses[p], prover(own.planner, kPasses[p]));
      if (!made->wrong.empty()) return made->wrong;
    }
    const std::vector<Digest>& proved = recorded ? (*recorded)[p] : made->programs;
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

template <class T>
std::vector<T> gather(comm::Communicator& comm, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(comm.world()));
  comm::all_gather(comm, std::as_bytes(std::span(&mine, 1)),
                   std::as_writable_bytes(std::span(all)));
  return all;
}

/// The same verdict on all ranks.
void judge_together(comm::Communicator& comm, const RankPrograms& own, const std::string& folder) {
  Verdict mine;
  const auto refuse = [&](Finding finding, std::string_view why) {
    if (why.empty()) return;
    mine.raise(finding, fmt::format("attention: {}; a proved plan is required on every rank", why));
  };
  const std::vector<Claims> claims = gather(comm, own.programs);
  try {
    refuse(Finding::RefusedPlan, judge(own, claims, comm.rank(), folder));
  } catch (const InvalidArgument& error) {  // of a recorded proof that is none
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

}  // namespace

bool is_proved(comm::Communicator& comm, const RankPrograms& own) {
  const Claims* const before = comm.attachment<Proved>().find(own.key);
  if (before == nullptr) return false;
  if (*before == own.programs) return true;
  fail<PlanError>("attention: {} was proved with other programs than rank {} has now",
                  to_string(own.planner.strategy()), comm.rank());
}

void prove_together(comm::Communicator& comm, const RankPrograms& own, const std::string& folder) {
  if (is_proved(comm, own)) return;
  judge_together(comm, own, folder);
  comm.attachment<Proved>().add(own.key, own.programs);
}

void prove_ahead(comm::Communicator& comm, const plan::Problem& problem,
                 const plan::Strategy& strategy, const std::string& folder) {
  const Digest key = digest_of(problem, strategy);
  std::error_code error;  // then it will be said by who needs it
  if (!folder.empty() && std::filesystem::exists(proof_path(folder, key), error)) return;
  for (std::size_t p = 0; p < kPasses.size(); ++p) {
    if (prover_of(key, p, comm.world()) != comm.rank()) continue;
    Proofs::of_this_process().start(key, kPasses[p], [problem, strategy, pass = kPasses[p]] {
      return prove(plan::Planner(problem, strategy), pass);
    });
  }
}

}  // namespace armillary::proof
