// Ops are taken batch by batch (plan/program/batches.h). Then the waits of plan/program/hazards.h
// become edges from ops to batches; those that follow from the order of lanes are left out.
#include "armillary/predict/sim/lanes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "armillary/plan/passes/lower.h"
#include "armillary/plan/program/batches.h"
#include "armillary/plan/program/hazards.h"

namespace armillary::sim {
namespace {

/// Makes the lanes of one program.
class LaneMaker {
 public:
  LaneMaker(const LaneInput& input, const plan::RankProgram& program)
      : input_(input), program_(program), batches_(program) {
    plan::expect_no_joint_ops("simulate", program);
    lanes_.rank = program.rank;
    add_batches();
    add_ops();
    add_waits();
    add_memory();
  }
  RankLanes take() { return std::move(lanes_); }

 private:
  void add_batches() {
    for (const plan::Batch& batch : batches_.all()) {
      lanes_.batches.push_back({.first_op = batch.begin,
                                .end_op = batch.end,
                                .lane = batch.lane,
                                .step = batch.step,
                                .next = batch.next});
    }
    lanes_.first_batch = batches_.first();
    first_of_.resize(program_.ops.size());
    std::iota(first_of_.begin(), first_of_.end(), 0);
  }

  void add_ops() {
    std::map<Port, int> ports;
    std::vector<int> last;  // By port: its last op.
    lanes_.ops.reserve(program_.ops.size());
    for (LaneBatch& batch : lanes_.batches) {
      const int end = batch.end_op;
      int place = batch.first_op;
      batch.first_op = static_cast<int>(lanes_.ops.size());
      for (; place < end; ++place) {
        const int i = batches_.order()[place];
        const plan::Op& op = program_.ops[i];
        LaneOp message{.op = i, .zero_copy = op.zero_copy, .kind = op.kind};
        if (!op.is_comm()) {
          message.work = input_.seconds(program_, op);
          lanes_.ops.push_back(message);
          continue;
        }
        const Port port{op.peer, op.lane, op.kind == plan::kSend};
        const auto [at, is_new] = ports.try_emplace(port, static_cast<int>(lanes_.ports.size()));
        if (is_new) {
          lanes_.ports.push_back(port);
          last.push_back(-1);
        }
        message.port = at->second;
        const std::int64_t bytes = input_.measures.bytes(program_, op);
        message.work = static_cast<double>(bytes);
        (port.sends ? lanes_.sent_bytes : lanes_.received_bytes) += bytes;
        add_message(message, batch.first_op, last[message.port]);
      }
      batch.end_op = static_cast<int>(lanes_.ops.size());
    }
    for (const LaneOp& op : lanes_.ops) {
      if (op.port < 0) continue;
      std::uint64_t& groups = lanes_.ports[op.port].groups;
      groups = groups * 1'000'003 + static_cast<std::uint64_t>(op.count);
    }
  }

  /// Adds a message to the batch that begins with `first_op`: to the last op of its port if both
  /// are of that batch and alike.
  void add_message(const LaneOp& op, int first_op, int& last) {
    if (input_.group && last >= first_op) {
      LaneOp& before = lanes_.ops[last];
      if (before.work == op.work && before.zero_copy == op.zero_copy) {
        ++before.count;
        first_of_[op.op] = before.op;
        return;
      }
    }
    last = static_cast<int>(lanes_.ops.size());
    lanes_.ops.push_back(op);
  }

  /// True if ops of the lane end in their order, so that a wait for one is a wait for all before.
  bool in_order(plan::Lane lane) const { return lane == plan::kCompute || input_.serial; }

  /// Collects the edges from ops to batches, and stores them by op.
  void add_waits() {
    std::vector<std::pair<int, int>> edges;  // (op of the program, batch), by the waiting op.
    std::map<std::pair<plan::Lane, plan::Lane>, int> reached;
    plan::for_each_dependencies(program_, [&](int i, std::span<const int> numbers) {
      const plan::Lane own = program_.ops[i].lane;
      for (auto earlier = numbers.rbegin(); earlier != numbers.rend(); ++earlier) {
        const plan::Lane lane = program_.ops[*earlier].lane;
        if (in_order(lane)) {
          if (lane == own && batches_.of(*earlier) != batches_.of(i)) continue;
          // Batches of a lane start in order, so its earlier waits hold for this one too.
          int& last = reached.try_emplace({own, lane}, -1).first->second;
          if (batches_.of(*earlier) < last && own != lane) continue;
          last = std::max(last, batches_.of(*earlier));
        }
        edges.emplace_back(first_of_[*earlier], batches_.of(i));
      }
    });
    std::vector<int> counts(program_.ops.size(), 0);
    for (const auto& [op, batch] : edges) ++counts[op];
    int total = 0;
    std::vector<LaneOp*> of(program_.ops.size(), nullptr);
    for (LaneOp& op : lanes_.ops) {
      op.first_follower = op.end_follower = total;
      total += counts[op.op];
      of[op.op] = &op;
    }
    lanes_.followers.resize(total);
    for (const auto& [op, batch] : edges) lanes_.followers[of[op]->end_follower++] = batch;
    // Several messages of a batch may wait for the same op.
    for (LaneOp& op : lanes_.ops) {
      const auto first = lanes_.followers.begin() + op.first_follower;
      const auto end = lanes_.followers.begin() + op.end_follower;
      std::sort(first, end);
      op.end_follower -= static_cast<int>(end - std::unique(first, end));
      for (auto batch = first; batch != lanes_.followers.begin() + op.end_follower; ++batch) {
        ++lanes_.batches[*batch].waits;
      }
    }
  }

  /// Sizes of slots, and the lives of tiles.
  void add_memory() {
    for (const plan::Slot& slot : program_.slots) {
      (slot.external ? lanes_.external_bytes : lanes_.slot_bytes) += slot.bytes;
    }
    if (!input_.tiles) return;
    std::vector<TileLife> lives(program_.tiles.size());
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      for (const plan::View& view : program_.ops[i].views) lives[view.tile].ops.push_back(i);
    }
    for (std::size_t t = 0; t < lives.size(); ++t) {
      const plan::Tile& tile = program_.tiles[t];
      if (program_.slots[tile.slot].external || lives[t].ops.empty()) continue;
      lives[t].bytes = input_.measures.bytes(tile);
      lanes_.tiles.push_back(std::move(lives[t]));
    }
  }

  const LaneInput& input_;
  const plan::RankProgram& program_;
  const plan::Batches batches_;
  RankLanes lanes_;
  std::vector<int> first_of_;  ///< By op of the program: the first message of its group.
};

}  // namespace

plan::RankProgram lowered_program(const plan::Planner& planner, plan::Pass pass, plan::Rank rank,
                                  const Messages& engine) {
  std::vector<plan::Lowering> passes(plan::kLowerings.begin(), plan::kLowerings.end());
  if (!engine.zero_copy) std::erase(passes, plan::Lowering::ZeroCopy);
  return lower(planner.problem(), planner.blocks(), planner.program(pass, rank), passes);
}

RankLanes make_lanes(const LaneInput& input, const plan::RankProgram& program) {
  return LaneMaker(input, program).take();
}

}  // namespace armillary::sim
