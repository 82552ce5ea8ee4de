// Rule `blocks`, in two parts. check_partition: blocks of each side lie within the sequence, do not
// share tokens, hold all tokens, and are those that the layout gives each rank. check_externals
// (after `well_formed`): inputs, outputs and saved tiles are the right tensors, and lie alone in
// slots of the caller.
#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

/// True if the run obeys the invariants of runs.h and lies in [0, length). Safe for any numbers.
bool lies_within(const Run& run, std::int64_t length) {
  if (run.begin < 0 || run.count < 1 || run.step < 1 || run.width < 1) return false;
  if (run.count > 1 && run.width > run.step) return false;
  std::int64_t last = 0;
  return !__builtin_mul_overflow(run.count - 1, run.step, &last) &&
         !__builtin_add_overflow(last, run.width - 1, &last) &&
         !__builtin_add_overflow(last, run.begin, &last) && last < length;
}

/// True if runs of one step are apart because their stripes are, modulo that step. Requires runs
/// that lie within the sequence. Cost: O(runs log runs); to compare every two would be their
/// square.
bool stripes_apart(const std::vector<const Run*>& runs) {
  if (runs.empty()) return true;
  const std::int64_t step = runs.front()->step;
  std::vector<std::pair<std::int64_t, std::int64_t>> stripes;  // Begin modulo the step, and width.
  for (const Run* run : runs) {
    if (run->step != step || run->width > step) return false;
    stripes.emplace_back(run->begin % step, run->width);
  }
  std::sort(stripes.begin(), stripes.end());
  for (std::size_t i = 0; i + 1 < stripes.size(); ++i) {
    if (stripes[i].first + stripes[i].second > stripes[i + 1].first) return false;
  }
  return stripes.back().first + stripes.back().second <= stripes.front().first + step;
}

/// Checks that the blocks of one side are a partition of its tokens.
class PartitionChecker {
 public:
  PartitionChecker(const std::vector<Block>& blocks, std::string_view side,
                   Diagnostics& diagnostics)
      : blocks_(blocks), side_(side), diagnostics_(diagnostics) {}

  void check(std::int64_t length, int world) {
    // Blocks inside the sequence and apart from each other hold all tokens if their number is
    // right.
    for (std::size_t b = 0; b < blocks_.size(); ++b) check_block(b, length, world);
    if (!diagnostics_.empty()) return;
    check_apart();
    if (!diagnostics_.empty()) return;
    std::int64_t total = 0;
    for (const Block& block : blocks_) total += block.tokens();
    if (total != length) {
      diagnostics_.add(-1, -1, "blocks", "{} blocks hold {} of {}", side_, count_of(total, "token"),
                       length);
    }
  }

 private:
  /// The block alone: its owner and its runs.
  void check_block(std::size_t b, std::int64_t length, int world) {
    const Block& block = blocks_[b];
    if (block.owner < 0 || block.owner >= world) {
      diagnostics_.add(-1, -1, "blocks", "{} block {} has owner {} of {}", side_, b, block.owner,
                       world);
    }
    for (const Run& run : block.runs) {
      if (lies_within(run, length)) continue;
      diagnostics_.add(
          -1, -1, "blocks",
          "{} block {} has the run begin {} count {} step {} width {}, which is none within "
          "{}",
          side_, b, run.begin, run.count, run.step, run.width, count_of(length, "token"));
    }
  }

  /// No token is in two runs. With runs sorted by begin, only those whose spans meet are compared.
  void check_apart() {
    struct BlockRun {
      const Run* run;
      std::size_t block;
    };
    std::vector<BlockRun> runs;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      for (const Run& run : blocks_[b].runs) runs.push_back({&run, b});
    }
    std::vector<const Run*> stripes;
    stripes.reserve(runs.size());
    for (const BlockRun& run : runs) stripes.push_back(run.run);
    if (stripes_apart(stripes)) return;
    std::sort(runs.begin(), runs.end(),
              [](const BlockRun& a, const BlockRun& b) { return a.run->begin < b.run->begin; });
    for (auto a = runs.begin(); a != runs.end(); ++a) {
      for (auto b = a + 1; b != runs.end() && b->run->begin <= a->run->last(); ++b) {
        if (diagnostics_.full()) return;
        if (count_common({*a->run}, {*b->run}) == 0) continue;
        diagnostics_.add(-1, -1, "blocks", "{} blocks {} and {} share tokens", side_,
                         std::min(a->block, b->block), std::max(a->block, b->block));
      }
    }
  }

  const std::vector<Block>& blocks_;
  std::string_view side_;
  Diagnostics& diagnostics_;
};

/// The tensors of a list of tiles, in any order.
using Roles = std::multiset<Tensor>;

/// Checks the inputs, outputs and saved tiles of one rank.
class ExternalChecker {
 public:
  ExternalChecker(const Plan& plan, const RankProgram& program, Diagnostics& diagnostics)
      : plan_(plan), program_(program), diagnostics_(diagnostics) {}

  void check() {
    using enum Tensor;
    // The tensors that this pass must return.
    const bool backward = plan_.pass == Pass::Backward;
    Roles results = backward ? Roles{DQ, DK, DV} : Roles{Out};
    if (!backward && plan_.problem.return_lse) results.insert(Lse);
    // A replay is also given the saved Out and Lse; without them its inputs are those of forward.
    std::vector<int> inputs = program_.inputs;
    if (plan_.pass == Pass::Replay) {
      std::erase_if(inputs, [&](int id) { return is_saved_result(id); });
      if (inputs.size() + 2 != program_.inputs.size()) {
        diagnostics_.add(program_.rank, -1, "blocks",
                         "a replay brings saved out and lse, once each");
      }
    }
    check_role(inputs, backward ? Roles{DOut} : Roles{Q, K, V}, "inputs");
    check_role(program_.outputs, results, "outputs");
    check_saved();
    check_slots();
  }

 private:
  bool is_saved_result(int id) const {
    const Tensor tensor = program_.tiles[id].tensor;
    return (tensor == Tensor::Out || tensor == Tensor::Lse) &&
           std::count(program_.saved.begin(), program_.saved.end(), id) > 0;
  }

  /// The blocks of a tensor that this rank owns.
  std::vector<int> owned(Tensor tensor) const {
    std::vector<int> ids;
    const std::vector<Block>& blocks = blocks_of(plan_.blocks, tensor);
    for (int id = 0; id < static_cast<int>(blocks.size()); ++id) {
      if (blocks[id].owner == program_.rank) ids.push_back(id);
    }
    return ids;
  }

  Roles tensors(const std::vector<int>& ids) const {
    Roles roles;
    for (const int id : ids) roles.insert(program_.tiles[id].tensor);
    return roles;
  }

  /// Inputs and outputs are whole: all heads of exactly the rank's own blocks.
  void check_role(const std::vector<int>& ids, const Roles& required, std::string_view role) {
    if (tensors(ids) != required) {
      diagnostics_.add(program_.rank, -1, "blocks", "{} are not the {} tensors of this pass", role,
                       required.size());
    }
    for (const int id : ids) {
      const Tile& tile = program_.tiles[id];
      const int heads = is_kv(tile.tensor) ? plan_.problem.kv_heads : plan_.problem.heads;
      if (tile.partial || tile.heads != Heads{0, heads} || tile.blocks != owned(tile.tensor)) {
        diagnostics_.add(program_.rank, -1, "blocks",
                         "{}: {} is not all heads of the rank's own blocks", role,
                         to_string(tile.tensor));
      }
    }
  }

  /// Saved tiles are the five tensors of forward, final; they may show any heads and blocks.
  void check_saved() {
    using enum Tensor;
    if (tensors(program_.saved) != Roles{Q, K, V, Out, Lse}) {
      diagnostics_.add(program_.rank, -1, "blocks", "saved tiles are not q, k, v, out and lse");
    }
    for (const int id : program_.saved) {
      if (program_.tiles[id].partial) {
        diagnostics_.add(program_.rank, -1, "blocks", "saved {} is partial",
                         to_string(program_.tiles[id].tensor));
      }
    }
  }

  /// A tile that the caller fills lies alone in its slot. A result of the caller may share its slot
  /// with tiles of the same tensor, shape and dtype. External are the slots of these tiles, and no
  /// others.
  void check_slots() {
    // Tiles that are filled before the pass, and all tiles of the caller.
    std::set<int> numbers(program_.inputs.begin(), program_.inputs.end());
    if (plan_.pass == Pass::Backward) numbers.insert(program_.saved.begin(), program_.saved.end());
    std::set<int> callers = numbers;
    callers.insert(program_.outputs.begin(), program_.outputs.end());
    callers.insert(program_.saved.begin(), program_.saved.end());
    // No two of them share a slot.
    std::vector<int> in_slot(program_.slots.size(), -1);  // By slot: the caller's tile in it.
    for (const int id : callers) {
      int& resident = in_slot[program_.tiles[id].slot];
      if (resident >= 0) {
        diagnostics_.add(program_.rank, -1, "blocks", "tiles {} and {} of the caller share slot {}",
                         resident, id, program_.tiles[id].slot);
      }
      resident = id;
    }
    for (std::size_t slot = 0; slot < in_slot.size(); ++slot) {
      if (program_.slots[slot].external == (in_slot[slot] >= 0)) continue;
      diagnostics_.add(
          program_.rank, -1, "blocks", "slot {} is {}external; {} tile of the caller", slot,
          program_.slots[slot].external ? "" : "not ",
          in_slot[slot] < 0 ? "it holds no" : fmt::format("tile {} in it is a", in_slot[slot]));
    }
    // All other tiles keep out of these slots, unless they are like the result in it.
    for (int id = 0; id < static_cast<int>(program_.tiles.size()); ++id) {
      const int slot = program_.tiles[id].slot;
      const int resident = in_slot[slot];
      if (resident >= 0 && resident != id &&
          (numbers.count(resident) > 0 || !alike(resident, id))) {
        diagnostics_.add(program_.rank, -1, "blocks", "tile {} lies in slot {} of the caller's {}",
                         id, slot, to_string(program_.tiles[resident].tensor));
      }
    }
  }

  /// True if two tiles are the same part of one tensor in the same dtype.
  bool alike(int a, int b) const {
    const Tile& left = program_.tiles[a];
    const Tile& right = program_.tiles[b];
    return left.tensor == right.tensor && left.heads == right.heads &&
           left.blocks == right.blocks &&
           dtype_of(plan_.problem, left) == dtype_of(plan_.problem, right);
  }

  const Plan& plan_;
  const RankProgram& program_;
  Diagnostics& diagnostics_;
};

/// Each rank owns the tokens that the layout gives it, in the order of the layout, however they are
/// cut into blocks.
void check_layout(const Plan& plan, Diagnostics& diagnostics) {
  const Problem& problem = plan.problem;
  const Shards required = shards(problem.layout, problem.mask, problem.world);
  const auto compare = [&](const std::vector<Block>& blocks, const std::vector<Runs>& shards_of,
                           std::string_view side) {
    std::vector<Runs> owned(shards_of.size());
    for (const Block& block : blocks) {
      owned[block.owner].insert(owned[block.owner].end(), block.runs.begin(), block.runs.end());
    }
    for (std::size_t rank = 0; rank < owned.size(); ++rank) {
      if (join(owned[rank]) == join(shards_of[rank])) continue;
      diagnostics.add(static_cast<Rank>(rank), -1, "blocks",
                      "its {} blocks are not the tokens that layout {} gives it, in that order",
                      side, to_string(problem.layout));
    }
  };
  compare(plan.blocks.q, required.q, "query");
  compare(plan.blocks.kv, required.kv, "key");
}

}  // namespace

void check_partition(const Plan& plan, Diagnostics& diagnostics) {
  const Problem& problem = plan.problem;
  PartitionChecker(plan.blocks.q, "query", diagnostics).check(problem.mask.q_len(), problem.world);
  if (!diagnostics.empty()) return;
  PartitionChecker(plan.blocks.kv, "key", diagnostics).check(problem.mask.kv_len(), problem.world);
  if (diagnostics.empty()) check_layout(plan, diagnostics);
}

void check_externals(const Plan& plan, Diagnostics& diagnostics) {
  for (const RankProgram& program : plan.ranks) ExternalChecker(plan, program, diagnostics).check();
}

}  // namespace armillary::plan::verifier
