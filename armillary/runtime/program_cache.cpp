#include "armillary/runtime/program_cache.h"

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "armillary/plan/verify.h"

namespace armillary::runtime {
namespace {

std::shared_ptr<const CompiledAttention> compile_all(const plan::Planner& planner,
                                                     const proof::Digest& key, plan::Rank rank,
                                                     const kernel::Kernel& kernel) {
  std::array<std::shared_ptr<const CompiledProgram>, proof::kPasses.size()> compiled;
  std::array<proof::Digest, proof::kPasses.size()> digests;
  const proof::Digest blocks = proof::digest_of(planner.blocks());
  for (std::size_t p = 0; p < compiled.size(); ++p) {
    plan::RankProgram program = proof::runnable(planner, proof::kPasses[p], rank);
    digests[p] = proof::digest_of(program, blocks);
    compiled[p] = compile(planner, std::move(program), kernel);
  }
  const plan::RankProgram& forward = compiled[0]->program;
  return std::make_shared<const CompiledAttention>(
      CompiledAttention{.forward = compiled[0],
                        .backward = compiled[1],
                        .replay = compiled[2],
                        .proved = {.planner = planner,
                                   .key = key,
                                   .programs = digests,
                                   .finds_saved = finds_saved(forward, compiled[1]->program) &&
                                                  finds_saved(forward, compiled[2]->program)}});
}

/// Planners and programs of recent problems. A training run has one problem per mask: packed
/// documents bring a new mask every step, so old ones must go.
class Cache {
 public:
  std::shared_ptr<const CompiledAttention> get(const plan::Problem& problem,
                                               const plan::Strategy& strategy, plan::Rank rank,
                                               const kernel::Kernel& kernel) {
    const std::shared_ptr<Entry> entry = find(problem, strategy, kernel);
    {
      const std::lock_guard lock(entry->mutex);
      const auto compiled = entry->programs.find(rank);
      if (compiled != entry->programs.end()) return compiled->second;
      if (!entry->planner) {
        entry->planner.emplace(problem, strategy);
        entry->key = proof::digest_of(problem, strategy);
      }
    }
    // Unlocked: ranks that are threads compile side by side, each its own.
    const auto compiled = compile_all(*entry->planner, entry->key, rank, kernel);
    const std::lock_guard lock(entry->mutex);
    return entry->programs.emplace(rank, compiled).first->second;
  }

 private:
  struct Entry {
    plan::Problem problem;
    plan::Strategy strategy;
    const kernel::Kernel* kernel = nullptr;
    std::mutex mutex;
    std::optional<plan::Planner> planner;  ///< Stays as it is once it is there, like `key`.
    proof::Digest key;
    std::map<plan::Rank, std::shared_ptr<const CompiledAttention>> programs;
  };

  std::shared_ptr<Entry> find(const plan::Problem& problem, const plan::Strategy& strategy,
                              const kernel::Kernel& kernel) {
    constexpr std::size_t kMostEntries = 32;
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Entry>& entry : entries_) {
      if (entry->kernel == &kernel && entry->problem == problem && entry->strategy == strategy) {
        return entry;
      }
    }
    auto entry = std::make_shared<Entry>();
    entry->problem = problem;
    entry->strategy = strategy;
    entry->kernel = &kernel;
    entries_.push_front(entry);
    if (entries_.size() > kMostEntries) entries_.pop_back();
    return entry;
  }

  std::mutex mutex_;
  std::deque<std::shared_ptr<Entry>> entries_;
};

}  // namespace

std::shared_ptr<const CompiledAttention> compile_cached(const plan::Problem& problem,
                                                        const plan::Strategy& strategy,
                                                        plan::Rank rank,
                                                        const kernel::Kernel& kernel) {
  static Cache cache;
  return cache.get(problem, strategy, rank, kernel);
}

}  // namespace armillary::runtime
