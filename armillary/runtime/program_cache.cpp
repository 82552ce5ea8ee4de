// One entry per (problem, strategy, kernel, source) holds all that the process knows of it: the
// planner, the programs of the ranks of the process, and their proofs. A planner is made under a
// lock, once for all ranks; a rank compiles without it.
#include "armillary/runtime/program_cache.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "armillary/core/recent.h"
#include "armillary/plan/verify/verify.h"

namespace armillary::runtime {
namespace {

/// A planner that is made by the first thread that needs it: a rank that compiles, or the one that
/// proves ahead.
class OnePlanner {
 public:
  OnePlanner(plan::Problem problem, plan::Strategy strategy)
      : problem(std::move(problem)), strategy(std::move(strategy)) {}

  /// @throws InvalidArgument, to every caller, if the strategy cannot solve the problem.
  const plan::Planner& get() {
    const std::lock_guard lock(mutex_);
    if (!planner_) planner_.emplace(problem, strategy);
    return *planner_;
  }

  const plan::Problem problem;
  const plan::Strategy strategy;

 private:
  std::mutex mutex_;
  std::optional<plan::Planner> planner_;
};

/// A question to the cache.
struct ProgramKey {
  const plan::Problem& problem;
  const plan::Strategy& strategy;
  const kernel::Kernel& kernel;
  const proof::ProgramSource& source;
};

/// All that is known of one problem, strategy, kernel and source. Threads: any.
class ProgramEntry {
 public:
  explicit ProgramEntry(const ProgramKey& key)
      : planner_(std::make_shared<OnePlanner>(key.problem, key.strategy)),
        kernel_(&key.kernel),
        source_(key.source),
        proofs_(std::make_shared<proof::Proofs>(
            [planner = planner_, source = source_](plan::Pass pass) {
              return proof::prove(planner->get(), pass, source);
            })) {}

  bool is_of(const ProgramKey& key) const {
    return kernel_ == &key.kernel && source_ == key.source && planner_->problem == key.problem &&
           planner_->strategy == key.strategy;
  }

  const std::shared_ptr<proof::Proofs>& proofs() const { return proofs_; }

  std::shared_ptr<const CompiledAttention> programs_of(plan::Rank rank) {
    {
      const std::lock_guard lock(mutex_);
      const auto compiled = programs_.find(rank);
      if (compiled != programs_.end()) return compiled->second;
    }
    // Ranks that are threads compile at the same time, each its own programs: no lock.
    const auto compiled = compile_all(planner_->get(), rank);
    const std::lock_guard lock(mutex_);
    return programs_.emplace(rank, compiled).first->second;
  }

 private:
  /// Programs of one rank in all passes, compiled, with their digests for the proof.
  std::shared_ptr<const CompiledAttention> compile_all(const plan::Planner& planner,
                                                       plan::Rank rank) const {
    std::array<std::shared_ptr<const CompiledProgram>, proof::kPasses.size()> compiled;
    std::array<proof::Digest, proof::kPasses.size()> digests;
    const proof::Digest blocks = proof::digest_of(planner.blocks());
    for (std::size_t p = 0; p < compiled.size(); ++p) {
      plan::RankProgram program = proof::program_of(source_, planner, proof::kPasses[p], rank);
      digests[p] = proof::digest_of(program, blocks);
      compiled[p] = compile(planner, std::move(program), *kernel_);
    }
    // Whether backward and replay expect the saved tiles that forward leaves is known here already.
    const plan::RankProgram& forward = compiled[0]->program;
    return std::make_shared<const CompiledAttention>(
        CompiledAttention{.forward = compiled[0],
                          .backward = compiled[1],
                          .replay = compiled[2],
                          .proved = {.planner = planner,
                                     .source = source_,
                                     .key = proof::digest_of(planner.problem(), planner.strategy()),
                                     .programs = digests,
                                     .finds_saved = finds_saved(forward, compiled[1]->program) &&
                                                    finds_saved(forward, compiled[2]->program),
                                     .proofs = proofs_}});
  }

  const std::shared_ptr<OnePlanner> planner_;
  const kernel::Kernel* const kernel_;
  const proof::ProgramSource source_;
  const std::shared_ptr<proof::Proofs> proofs_;
  std::mutex mutex_;
  std::map<plan::Rank, std::shared_ptr<const CompiledAttention>> programs_;
};

/// The problems that were used last. A training run has one problem per mask, and packed documents
/// bring a new mask every step, so old problems must go. One that goes stays alive as long as a
/// rank uses it.
class Cache {
 public:
  /// The entry of this problem, added if there is none. Planning happens outside of the lock.
  std::shared_ptr<ProgramEntry> get(const ProgramKey& key) {
    const std::lock_guard lock(mutex_);
    const auto* const known = entries_.find(
        [&](const std::shared_ptr<ProgramEntry>& entry) { return entry->is_of(key); });
    return known != nullptr ? *known : entries_.add(std::make_shared<ProgramEntry>(key));
  }

 private:
  std::mutex mutex_;
  Recent<std::shared_ptr<ProgramEntry>> entries_{kProblemsKept};
};

Cache& cache() {
  static Cache of_this_process;
  return of_this_process;
}

}  // namespace

std::shared_ptr<const CompiledAttention> compile_cached(const plan::Problem& problem,
                                                        const plan::Strategy& strategy,
                                                        plan::Rank rank,
                                                        const kernel::Kernel& kernel,
                                                        const proof::ProgramSource& source) {
  return cache().get({problem, strategy, kernel, source})->programs_of(rank);
}

std::shared_ptr<proof::Proofs> proofs_cached(const plan::Problem& problem,
                                             const plan::Strategy& strategy,
                                             const kernel::Kernel& kernel) {
  const proof::ProgramSource of_strategy;
  return cache().get({problem, strategy, kernel, of_strategy})->proofs();
}

}  // namespace armillary::runtime
