// One entry per (problem, strategy, kernel, source) holds the planner and the programs of all ranks
// of the process. A rank plans under the lock of the entry, once for all ranks, and compiles
// without it.
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

/// Programs of one rank in all passes, compiled, with their digests for the proof.
std::shared_ptr<const CompiledAttention> compile_all(const plan::Planner& planner,
                                                     const proof::ProgramSource& source,
                                                     const proof::Digest& key, plan::Rank rank,
                                                     const kernel::Kernel& kernel) {
  std::array<std::shared_ptr<const CompiledProgram>, proof::kPasses.size()> compiled;
  std::array<proof::Digest, proof::kPasses.size()> digests;
  const proof::Digest blocks = proof::digest_of(planner.blocks());
  for (std::size_t p = 0; p < compiled.size(); ++p) {
    plan::RankProgram program = proof::program_of(source, planner, proof::kPasses[p], rank);
    digests[p] = proof::digest_of(program, blocks);
    compiled[p] = compile(planner, std::move(program), kernel);
  }
  // Whether backward and replay expect the saved tiles that forward leaves is known here already.
  const plan::RankProgram& forward = compiled[0]->program;
  return std::make_shared<const CompiledAttention>(
      CompiledAttention{.forward = compiled[0],
                        .backward = compiled[1],
                        .replay = compiled[2],
                        .proved = {.planner = planner,
                                   .source = source,
                                   .key = key,
                                   .programs = digests,
                                   .finds_saved = finds_saved(forward, compiled[1]->program) &&
                                                  finds_saved(forward, compiled[2]->program)}});
}

/// Planners and programs of the problems that were used last. A training run has one problem per
/// mask, and packed documents bring a new mask every step, so old problems must go. Entries that go
/// stay alive as long as a rank uses them.
class Cache {
 public:
  std::shared_ptr<const CompiledAttention> get(const plan::Problem& problem,
                                               const plan::Strategy& strategy, plan::Rank rank,
                                               const kernel::Kernel& kernel,
                                               const proof::ProgramSource& source) {
    const std::shared_ptr<Entry> entry = find(problem, strategy, kernel, source);
    {
      const std::lock_guard lock(entry->mutex);
      const auto compiled = entry->programs.find(rank);
      if (compiled != entry->programs.end()) return compiled->second;
      if (!entry->planner) {
        entry->planner.emplace(problem, strategy);
        entry->key = proof::digest_of(problem, strategy);
      }
    }
    // Ranks that are threads compile at the same time, each its own programs: no lock. The planner
    // does not change once it is there.
    const auto compiled = compile_all(*entry->planner, source, entry->key, rank, kernel);
    const std::lock_guard lock(entry->mutex);
    return entry->programs.emplace(rank, compiled).first->second;
  }

 private:
  struct Entry {
    plan::Problem problem;
    plan::Strategy strategy;
    const kernel::Kernel* kernel = nullptr;
    proof::ProgramSource source;
    std::mutex mutex;
    std::optional<plan::Planner> planner;  ///< made once, by the first rank; `key` likewise
    proof::Digest key;
    std::map<plan::Rank, std::shared_ptr<const CompiledAttention>> programs;
  };

  /// The entry of this problem, added if there is none. Planning happens outside of this lock.
  std::shared_ptr<Entry> find(const plan::Problem& problem, const plan::Strategy& strategy,
                              const kernel::Kernel& kernel, const proof::ProgramSource& source) {
    const std::lock_guard lock(mutex_);
    const auto* const known = entries_.find([&](const std::shared_ptr<Entry>& entry) {
      return entry->kernel == &kernel && entry->source == source && entry->problem == problem &&
             entry->strategy == strategy;
    });
    if (known != nullptr) return *known;
    auto entry = std::make_shared<Entry>();
    entry->problem = problem;
    entry->strategy = strategy;
    entry->kernel = &kernel;
    entry->source = source;
    return entries_.add(std::move(entry));
  }

  std::mutex mutex_;
  Recent<std::shared_ptr<Entry>> entries_{128};
};

}  // namespace

std::shared_ptr<const CompiledAttention> compile_cached(const plan::Problem& problem,
                                                        const plan::Strategy& strategy,
                                                        plan::Rank rank,
                                                        const kernel::Kernel& kernel,
                                                        const proof::ProgramSource& source) {
  static Cache cache;
  return cache.get(problem, strategy, rank, kernel, source);
}

}  // namespace armillary::runtime
