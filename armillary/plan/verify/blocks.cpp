#include <algorithm>
#include <set>
#include <string_view>

#include "armillary/plan/verify/structure.h"

namespace armillary::plan::verifier {
namespace {

/// Does the run lie in [0, length), in the form that runs.h asks for? Safe for any numbers.
bool lies_within(const Run& run, std::int64_t length) {
  if (run.begin < 0 || run.count < 1 || run.step < 1 || run.width < 1) return false;
  if (run.count > 1 && run.width > run.step) return false;
  std::int64_t last = 0;
  return !__builtin_mul_overflow(run.count - 1, run.step, &last) &&
         !__builtin_add_overflow(last, run.width - 1, &last) &&
         !__builtin_add_overflow(last, run.begin, &last) && last < length;
}

/// The blocks of queries or of keys.
class PartitionChecker {
 public:
  PartitionChecker(const std::vector<Block>& blocks, std::string_view side, Report& report)
      : blocks_(blocks), side_(side), report_(report) {}

  void check(std::int64_t length, int world) {
    for (std::size_t b = 0; b < blocks_.size(); ++b) check_block(b, length, world);
    if (!report_.empty()) return;
    check_apart();
    if (!report_.empty()) return;
    std::int64_t total = 0;
    for (const Block& block : blocks_) total += block.tokens();
    if (total != length) {
      report_.add(-1, -1, "blocks", "{} blocks hold {} tokens of {}", side_, total, length);
    }
  }

 private:
  void check_block(std::size_t b, std::int64_t length, int world) {
    const Block& block = blocks_[b];
    if (block.owner < 0 || block.owner >= world) {
      report_.add(-1, -1, "blocks", "{} block {} has owner {} of {}", side_, b, block.owner, world);
    }
    for (const Run& run : block.runs) {
      if (lies_within(run, length)) continue;
      report_.add(
          -1, -1, "blocks",
          "{} block {} has the run begin {} count {} step {} width {}, which is none within "
          "{} tokens",
          side_, b, run.begin, run.count, run.step, run.width, length);
    }
  }

  /// No token is held twice. Only runs whose spans meet are compared.
  void check_apart() {
    struct Held {
      const Run* run;
      std::size_t block;
    };
    std::vector<Held> held;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      for (const Run& run : blocks_[b].runs) held.push_back({&run, b});
    }
    std::sort(held.begin(), held.end(),
              [](const Held& a, const Held& b) { return a.run->begin < b.run->begin; });
    for (auto a = held.begin(); a != held.end(); ++a) {
      for (auto b = a + 1; b != held.end() && b->run->begin <= a->run->last(); ++b) {
        if (report_.full()) return;
        if (count_common({*a->run}, {*b->run}) == 0) continue;
        report_.add(-1, -1, "blocks", "{} blocks {} and {} share tokens", side_,
                    std::min(a->block, b->block), std::max(a->block, b->block));
      }
    }
  }

  const std::vector<Block>& blocks_;
  std::string_view side_;
  Report& report_;
};

using Roles = std::multiset<Tensor>;

class ExternalChecker {
 public:
  ExternalChecker(const Plan& plan, const RankProgram& program, Report& report)
      : plan_(plan), program_(program), report_(report) {}

  void check() {
    using enum Tensor;
    const bool backward = plan_.pass == Pass::Backward;
    Roles results = backward ? Roles{DQ, DK, DV} : Roles{Out};
    if (!backward && plan_.problem.return_lse) results.insert(Lse);
    std::vector<int> inputs = program_.inputs;
    if (plan_.pass == Pass::Replay) {  // which brings saved results, too
      std::erase_if(inputs, [&](int id) { return is_saved_result(id); });
      if (inputs.size() + 2 != program_.inputs.size()) {
        report_.add(program_.rank, -1, "blocks", "a replay brings saved out and lse, once each");
      }
    }
    check_home(inputs, backward ? Roles{DOut} : Roles{Q, K, V}, "inputs");
    check_home(program_.outputs, results, "outputs");
    check_saved();
    check_slots();
  }

 private:
  bool is_saved_result(int id) const {
    const Tensor tensor = program_.tiles[id].tensor;
    return (tensor == Tensor::Out || tensor == Tensor::Lse) &&
           std::count(program_.saved.begin(), program_.saved.end(), id) > 0;
  }

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
  void check_home(const std::vector<int>& ids, const Roles& required, std::string_view role) {
    if (tensors(ids) != required) {
      report_.add(program_.rank, -1, "blocks", "{} are not the {} tensors of this pass", role,
                  required.size());
    }
    for (const int id : ids) {
      const Tile& tile = program_.tiles[id];
      const int heads = is_kv(tile.tensor) ? plan_.problem.kv_heads : plan_.problem.heads;
      if (tile.partial || tile.heads != Heads{0, heads} || tile.blocks != owned(tile.tensor)) {
        report_.add(program_.rank, -1, "blocks", "{}: {} is not all heads of the rank's own blocks",
                    role, to_string(tile.tensor));
      }
    }
  }

  void check_saved() {
    using enum Tensor;
    if (tensors(program_.saved) != Roles{Q, K, V, Out, Lse}) {
      report_.add(program_.rank, -1, "blocks", "saved tiles are not q, k, v, out and lse");
    }
    for (const int id : program_.saved) {
      if (program_.tiles[id].partial) {
        report_.add(program_.rank, -1, "blocks", "saved {} is partial",
                    to_string(program_.tiles[id].tensor));
      }
    }
  }

  /// A tile of the caller lies alone in its slot, or, if it is a result, with others that are in
  /// memory what it is.
  void check_slots() {
    std::set<int> given(program_.inputs.begin(), program_.inputs.end());
    if (plan_.pass == Pass::Backward) given.insert(program_.saved.begin(), program_.saved.end());
    std::set<int> callers = given;
    callers.insert(program_.outputs.begin(), program_.outputs.end());
    for (const int id : program_.saved) {  // its slot may be the caller's
      if (program_.slots[program_.tiles[id].slot].external) callers.insert(id);
    }
    std::vector<int> home(program_.slots.size(), -1);  // By slot: the caller's tile in it.
    for (const int id : callers) {
      int& held = home[program_.tiles[id].slot];
      if (held >= 0) {
        report_.add(program_.rank, -1, "blocks", "tiles {} and {} of the caller share slot {}",
                    held, id, program_.tiles[id].slot);
      }
      held = id;
    }
    for (int id = 0; id < static_cast<int>(program_.tiles.size()); ++id) {
      const int slot = program_.tiles[id].slot;
      const int held = home[slot];
      if (program_.slots[slot].external != (held >= 0)) {
        report_.add(program_.rank, -1, "blocks", "slot {} of tile {} is {}the caller's", slot, id,
                    program_.slots[slot].external ? "" : "not ");
      } else if (held >= 0 && held != id && (given.count(held) > 0 || !alike(held, id))) {
        report_.add(program_.rank, -1, "blocks", "tile {} lies in slot {} of the caller's {}", id,
                    slot, to_string(program_.tiles[held].tensor));
      }
    }
  }

  /// Same shape and dtype.
  bool alike(int a, int b) const {
    const Tile& left = program_.tiles[a];
    const Tile& right = program_.tiles[b];
    return left.tensor == right.tensor && left.heads == right.heads &&
           left.blocks == right.blocks &&
           dtype_of(plan_.problem, left) == dtype_of(plan_.problem, right);
  }

  const Plan& plan_;
  const RankProgram& program_;
  Report& report_;
};

/// Each rank owns what the layout gives it, in the order in which the layout gives it.
void check_layout(const Plan& plan, Report& report) {
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
      report.add(static_cast<Rank>(rank), -1, "blocks",
                 "its {} blocks are not the tokens that layout {} gives it, in that order", side,
                 to_string(problem.layout));
    }
  };
  compare(plan.blocks.q, required.q, "query");
  compare(plan.blocks.kv, required.kv, "key");
}

}  // namespace

void check_partition(const Plan& plan, Report& report) {
  const Problem& problem = plan.problem;
  PartitionChecker(plan.blocks.q, "query", report).check(problem.mask.q_len(), problem.world);
  if (!report.empty()) return;
  PartitionChecker(plan.blocks.kv, "key", report).check(problem.mask.kv_len(), problem.world);
  if (report.empty()) check_layout(plan, report);
}

void check_externals(const Plan& plan, Report& report) {
  for (const RankProgram& program : plan.ranks) ExternalChecker(plan, program, report).check();
}

}  // namespace armillary::plan::verifier
