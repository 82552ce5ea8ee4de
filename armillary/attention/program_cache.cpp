#include "armillary/attention/program_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "armillary/core/error.h"

namespace armillary::attention {
namespace {

/// The lengths of a mask and its first bands.
std::string describe(const plan::Mask& mask) {
  constexpr std::size_t kMostBands = 4;
  std::string text = fmt::format("{}x{}", mask.q_len(), mask.kv_len());
  for (std::size_t b = 0; b < std::min(mask.bands().size(), kMostBands); ++b) {
    text += (b == 0 ? ":" : ";") + to_string(mask.bands()[b]);
  }
  if (mask.bands().size() > kMostBands) text += fmt::format(";..{}", mask.bands().size());
  return text;
}

std::string describe(const plan::Problem& problem, const std::string& strategy) {
  return fmt::format(
      "version={} strategy={} layout={} wire={} dtype={} batch={} heads={} kv_heads={} "
      "head_dim={} value_dim={} return_lse={} mask={}",
      proof::version(), strategy, to_string(problem.layout), to_string(problem.wire),
      to_string(problem.dtype), problem.batch, problem.heads, problem.kv_heads, problem.head_dim,
      problem.value_dim, problem.return_lse, describe(problem.mask));
}

std::shared_ptr<const CompiledAttention> compile_all(const plan::Planner& planner,
                                                     const proof::Digest& key, plan::Rank rank,
                                                     const kernel::Kernel& kernel) {
  std::array<std::shared_ptr<const CompiledProgram>, proof::kPasses.size()> compiled;
  std::array<proof::Digest, proof::kPasses.size()> digests;
  std::array<proof::Digest, proof::kPasses.size()> saved;
  const proof::Digest blocks = proof::digest_of(planner.blocks());
  for (std::size_t p = 0; p < compiled.size(); ++p) {
    plan::RankProgram program = proof::runnable(planner, proof::kPasses[p], rank);
    digests[p] = proof::digest_of(program, blocks);
    saved[p] = proof::digest_of_saved(program);
    compiled[p] = compile(planner, std::move(program), kernel);
  }
  return std::make_shared<const CompiledAttention>(
      CompiledAttention{.forward = compiled[0],
                        .backward = compiled[1],
                        .replay = compiled[2],
                        .proved = {.planner = planner,
                                   .key = key,
                                   .programs = digests,
                                   .finds_saved = saved[1] == saved[0] && saved[2] == saved[0]}});
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

const Described& described(const plan::Problem& problem, const std::string& strategy_text) {
  constexpr std::size_t kMost = 8;
  thread_local std::deque<Described> recent;
  for (const Described& one : recent) {
    if (one.strategy_text == strategy_text && one.problem == problem) return one;
  }
  Described made{
      .problem = problem, .strategy_text = strategy_text, .strategy = {}, .key = {}, .words = {}};
  try {
    made.strategy = plan::parse_strategy(strategy_text);
    made.key = proof::digest_of(problem, *made.strategy);
  } catch (const InvalidArgument&) {  // said by who compiles it
    made.key = proof::digest_of(strategy_text);
  }
  made.words = describe(problem, made.strategy ? to_string(*made.strategy) : strategy_text);
  recent.push_front(std::move(made));
  if (recent.size() > kMost) recent.pop_back();
  return recent.front();
}

std::shared_ptr<const CompiledAttention> compile_cached(const plan::Problem& problem,
                                                        const plan::Strategy& strategy,
                                                        plan::Rank rank,
                                                        const kernel::Kernel& kernel) {
  static Cache cache;
  return cache.get(problem, strategy, rank, kernel);
}

}  // namespace armillary::attention
