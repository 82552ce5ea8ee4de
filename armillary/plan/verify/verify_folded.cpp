// Proof of a folded plan: a plan that has one program for each class goes through the checks of
// verify/. Those of single ranks see the representatives as the ranks that they are. For the others
// programs are numbered by class, and messages are matched between classes.
#include "armillary/plan/verify/verify_folded.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/plan/program/parallel_for_ranks.h"
#include "armillary/plan/verify/structure.h"
#include "armillary/plan/verify/symbols.h"

namespace armillary::plan {
namespace {

/// Proves the representatives. `plan` has their programs, in the order of the classes, as
/// Fold::relative gives them.
std::vector<Diagnostic> prove_classes(Plan plan, const Fold& fold, int limit) {
  validate(plan.problem);
  Diagnostics diagnostics(limit);
  const auto take = [&] {
    std::vector<Diagnostic> faults = diagnostics.take();
    for (Diagnostic& diagnostic : faults) {
      if (diagnostic.rank >= 0) diagnostic.text += " (it stands for all ranks of its class)";
    }
    return faults;
  };
  // Structure: representatives as the ranks that they are.
  verifier::check_partition(plan, diagnostics);
  if (!diagnostics.empty()) return take();
  const Measures measures = measures_of(plan.problem, plan.blocks);
  const World world{measures, plan.ranks, plan.problem.world};
  verifier::check_well_formed(plan, measures, diagnostics, &fold);
  if (!diagnostics.empty()) return take();
  verifier::check_externals(plan, diagnostics);
  if (!diagnostics.empty()) return take();
  check_zero_copy(world, diagnostics);
  if (!diagnostics.empty()) return take();
  const auto messages = verifier::match_folded(plan, fold, diagnostics);
  if (!diagnostics.empty()) return take();
  // The rest: programs by the number of their class.
  for (int c = 0; c < fold.classes(); ++c) plan.ranks[c].rank = c;
  const auto actions = order_actions(world, messages, diagnostics);
  if (diagnostics.empty()) {
    verifier::run_symbols(plan, actions, diagnostics, &fold);
  }
  std::vector<Diagnostic> of_classes = take();
  for (Diagnostic& diagnostic : of_classes) {
    if (diagnostic.rank >= 0) diagnostic.rank = fold.representative(diagnostic.rank);
  }
  return of_classes;
}

/// Adds the ops of a program that stands for so many ranks.
void count(FoldedProof& proof, const RankProgram& program, int ranks, std::set<int>& steps) {
  proof.ops += static_cast<std::int64_t>(program.ops.size()) * ranks;
  for (const Op& op : program.ops) steps.insert(steps.end(), op.step);
  proof.steps = static_cast<int>(steps.size());
}

/// The nearest problem or strategy whose ranks are alike.
std::string nearest_alike(const Problem& problem, const Strategy& strategy) {
  const Mask& mask = problem.mask;
  const auto even = [&](std::int64_t tokens) { return tokens - tokens % problem.world; };
  if (even(mask.q_len()) != mask.q_len() || even(mask.kv_len()) != mask.kv_len()) {
    return fmt::format("{} tokens", std::max<std::int64_t>(even(mask.q_len()), problem.world));
  }
  if (!mask.shows_all()) {
    const bool causal = mask == parse_mask("causal", {mask.q_len(), mask.kv_len()});
    return causal && problem.layout.kind != LayoutKind::Striped ? "layout striped:1" : "mask full";
  }
  if (strategy.name == "startrail") {
    for (int c = 2; c * c <= problem.world; ++c) {
      if (c * c == problem.world || c * c * c == problem.world) {
        return fmt::format("startrail:c={}", c);
      }
    }
  }
  return "ring";
}

/// Why no two ranks of a world are alike, and what could be done.
[[noreturn]] void refuse(const Planner& planner, Pass pass, std::int64_t ops,
                         std::int64_t most_ops) {
  const Problem& problem = planner.problem();
  fail<InvalidArgument>(
      "verify: {} {} on {} ranks, layout {}: no two ranks are alike, and its {} ops are too many "
      "to prove all ranks one by one, at most {}; ranks are alike if every block sees every other, "
      "in shards of one length (mask full, or causal with layout striped), and the strategy is a "
      "grid, or startrail with c^2 or c^3 ranks; nearest: {}",
      to_string(planner.strategy()), to_string(pass), problem.world, to_string(problem.layout), ops,
      most_ops, nearest_alike(problem, planner.strategy()));
}

}  // namespace

FoldedProof verify_folded(const Plan& plan, const Fold& fold, int limit) {
  const int world = plan.problem.world;
  FoldedProof proof{.classes = world, .compared = world};
  std::set<int> steps;
  for (const RankProgram& program : plan.ranks) count(proof, program, 1, steps);
  // Renumbering needs ranks and blocks that exist, so other plans are not folded.
  Diagnostics malformed(1);
  verifier::check_partition(plan, malformed);
  if (malformed.empty()) {
    verifier::check_well_formed(plan, measures_of(plan.problem, plan.blocks), malformed);
  }
  Plan folded{.problem = plan.problem,
              .strategy = plan.strategy,
              .pass = plan.pass,
              .blocks = plan.blocks,
              .ranks = {}};
  std::atomic<bool> alike = malformed.empty();
  if (alike) {
    for (int c = 0; c < fold.classes(); ++c) {
      folded.ranks.push_back(fold.relative(plan.ranks[fold.representative(c)]));
    }
    parallel_for_ranks(world, [&](Rank rank) {
      if (alike && fold.relative(plan.ranks[rank]) != folded.ranks[fold.class_of(rank)]) {
        alike = false;
      }
    });
  }
  if (!alike) {
    proof.diagnostics = verify(plan, limit);
    return proof;
  }
  proof.classes = fold.classes();
  proof.diagnostics = prove_classes(std::move(folded), fold, limit);
  return proof;
}

namespace {

/// The tiles that programs of some ranks save or find; their ops are left out.
using SavedTiles = std::map<Rank, RankProgram>;

constexpr int kLeastSample = 16;

/// Rank `i` of an evenly spread sample, so that all digits of their numbers vary.
Rank sampled(int i, int sample, int world) {
  return static_cast<Rank>(static_cast<std::int64_t>(i) * (world - 1) / std::max(sample - 1, 1));
}

RankProgram saved_tiles_of(const RankProgram& program) {
  return {
      .words = program.words, .rank = program.rank, .tiles = program.tiles, .saved = program.saved};
}

/// The ops of all ranks, by those of a sample.
std::int64_t estimated_ops(const Planner& planner, Pass pass, const ProgramOf& program) {
  const int world = planner.problem().world;
  const int sample = std::min(kLeastSample, world);
  std::atomic<std::int64_t> ops = 0;
  parallel_for_ranks(sample, [&](int i) {
    ops += static_cast<std::int64_t>(program(pass, sampled(i, sample, world)).ops.size());
  });
  return ops * world / sample;
}

/// The proof of a pass, and the saved tiles of the programs that were made for it.
struct ProofAndTiles {
  FoldedProof proof;
  SavedTiles saved;
};

/// Proves one pass of which no two ranks are alike.
ProofAndTiles prove_all(const Planner& planner, Pass pass, const ProgramOf& program, int limit) {
  const int world = planner.problem().world;
  Plan plan{.problem = planner.problem(),
            .strategy = to_string(planner.strategy()),
            .pass = pass,
            .blocks = planner.blocks(),
            .ranks = std::vector<RankProgram>(world)};
  parallel_for_ranks(world, [&](Rank rank) { plan.ranks[rank] = program(pass, rank); });
  ProofAndTiles all{.proof = {.classes = world, .compared = world}, .saved = {}};
  std::set<int> steps;
  for (const RankProgram& one : plan.ranks) {
    count(all.proof, one, 1, steps);
    all.saved[one.rank] = saved_tiles_of(one);
  }
  all.proof.diagnostics = verify(plan, limit);
  return all;
}

/// Proves one pass by its classes.
ProofAndTiles prove_folded(const Planner& planner, const Fold& fold, Pass pass,
                           const ProgramOf& program, int limit) {
  constexpr std::int64_t kComparedOps = std::int64_t{1} << 20;
  const int world = planner.problem().world;
  SavedTiles saved;
  std::mutex mutex;
  const auto make = [&](Rank rank) {
    RankProgram whole = program(pass, rank);
    const std::lock_guard lock(mutex);
    saved[rank] = saved_tiles_of(whole);
    return fold.relative(std::move(whole));
  };
  Plan folded{.problem = planner.problem(),
              .strategy = to_string(planner.strategy()),
              .pass = pass,
              .blocks = planner.blocks(),
              .ranks = std::vector<RankProgram>(fold.classes())};
  parallel_for_ranks(fold.classes(),
                     [&](int c) { folded.ranks[c] = make(fold.representative(c)); });
  FoldedProof proof{.classes = fold.classes()};
  std::set<int> steps;
  for (const RankProgram& one : folded.ranks) count(proof, one, world / fold.classes(), steps);
  // The sample.
  const std::int64_t fits = kComparedOps * world / std::max<std::int64_t>(proof.ops, 1);
  proof.compared =
      static_cast<int>(std::clamp<std::int64_t>(fits, std::min(kLeastSample, world), world));
  parallel_for_ranks(proof.compared, [&](int i) {
    const Rank rank = sampled(i, proof.compared, world);
    if (make(rank) == folded.ranks[fold.class_of(rank)]) return;
    fail<PlanError>("verify: the {} program of rank {} is not that of rank {} with other numbers",
                    to_string(pass), rank, fold.representative(fold.class_of(rank)));
  });
  proof.diagnostics = prove_classes(std::move(folded), fold, limit);
  return {.proof = std::move(proof), .saved = std::move(saved)};
}

}  // namespace

std::vector<FoldedProof> verify_folded(const Planner& planner, const std::vector<Pass>& passes,
                                       const ProgramOf& program, int limit, std::int64_t most_ops) {
  std::vector<FoldedProof> proofs;
  SavedTiles first;
  for (const Pass pass : passes) {
    const std::optional<Fold> fold = planner.fold(pass);
    const std::int64_t ops = fold ? 0 : estimated_ops(planner, pass, program);
    if (ops > most_ops) refuse(planner, pass, ops, most_ops);
    auto [proof, saved] = fold ? prove_folded(planner, *fold, pass, program, limit)
                               : prove_all(planner, pass, program, limit);
    if (proofs.empty()) first = saved;
    for (const auto& [rank, left] : first) {
      const auto entry = saved.find(rank);
      if (entry == saved.end() || finds_saved(left, entry->second)) continue;
      proof.diagnostics.push_back(
          {.rank = rank,
           .rule = "blocks",
           .text = fmt::format("{} does not find what {} leaves", to_string(pass),
                               to_string(passes.front()))});
    }
    proofs.push_back(std::move(proof));
  }
  return proofs;
}

}  // namespace armillary::plan
