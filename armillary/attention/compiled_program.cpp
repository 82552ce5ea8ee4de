#include "armillary/attention/compiled_program.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "armillary/attention/fused.h"
#include "armillary/attention/loans.h"
#include "armillary/core/error.h"
#include "armillary/plan/hazards.h"
#include "armillary/plan/replay.h"

namespace armillary::attention {
namespace {

using plan::Op;
using plan::Tile;
using plan::View;

/// The view as one segment per block.
LocatedView locate(const plan::Blocks& blocks, const plan::RankProgram& program, const View& view) {
  const Tile& tile = program.tiles[view.tile];
  const std::vector<plan::Block>& table = blocks_of(blocks, tile.tensor);
  LocatedView located{.tile = view.tile,
                      .first_head = view.heads.begin - tile.heads.begin,
                      .heads = view.heads.count(),
                      .first_global_head = view.heads.begin,
                      .segments = {}};
  auto next = view.blocks.begin();
  std::int64_t token = 0;
  for (const int block : tile.blocks) {
    if (next != view.blocks.end() && *next == block) {
      located.segments.push_back({token, table[block].tokens(), table[block].runs});
      ++next;
    }
    token += table[block].tokens();
  }
  return located;
}

/// Joins segments that are neighbours in every one of the views, which show the same blocks: fewer
/// and larger kernel calls.
void join_segments(const std::vector<LocatedView*>& views) {
  if (views.empty()) return;
  const std::size_t count = views[0]->segments.size();
  std::vector<bool> joins(count, true);
  for (const LocatedView* view : views) {
    for (std::size_t s = 1; s < count; ++s) {
      const Segment& before = view->segments[s - 1];
      if (before.begin + before.count != view->segments[s].begin) joins[s] = false;
    }
  }
  for (LocatedView* view : views) {
    std::vector<Segment> joined;
    for (std::size_t s = 0; s < count; ++s) {
      Segment& segment = view->segments[s];
      if (s == 0 || !joins[s]) {
        joined.push_back(std::move(segment));
        continue;
      }
      joined.back().count += segment.count;
      plan::Runs& positions = joined.back().positions;
      positions.insert(positions.end(), segment.positions.begin(), segment.positions.end());
    }
    for (Segment& segment : joined) segment.positions = plan::join(segment.positions);
    view->segments = std::move(joined);
  }
}

std::vector<LocatedView> locate_all(const plan::Blocks& blocks, const plan::RankProgram& program,
                                    const Op& op) {
  std::vector<LocatedView> located;
  for (const View& view : op.views) located.push_back(locate(blocks, program, view));
  std::vector<LocatedView*> q_side;
  std::vector<LocatedView*> kv_side;
  for (LocatedView& view : located) {
    (is_kv(program.tiles[view.tile].tensor) ? kv_side : q_side).push_back(&view);
  }
  join_segments(q_side);
  join_segments(kv_side);
  return located;
}

std::vector<std::int64_t> shape_of(const plan::Problem& problem, const plan::Blocks& blocks,
                                   const Tile& tile) {
  std::vector<std::int64_t> shape{problem.batch, tokens_of(blocks, tile.tensor, tile.blocks),
                                  tile.heads.count()};
  if (tile.tensor != plan::Tensor::Lse && tile.tensor != plan::Tensor::Delta) {
    shape.push_back(dim_of(problem, tile.tensor));
  }
  return shape;
}

/// Joins the message of the batch to or from the same peer, or begins one. Both ends agree: the ops
/// of a collective are in the same step and the same order on all of its ranks.
void add_to_messages(const plan::RankProgram& program, int op, Batch& batch) {
  const Op& added = program.ops[op];
  if (added.collective == plan::Collective::AllToAll) {
    for (std::vector<int>& message : batch.messages) {
      const Op& first = program.ops[message[0]];
      if (first.kind == added.kind && first.peer == added.peer &&
          first.collective == added.collective) {
        message.push_back(op);
        return;
      }
    }
  }
  batch.messages.push_back({op});
}

bool touches(const Op& op, int tile) {
  return std::any_of(op.views.begin(), op.views.end(),
                     [&](const View& view) { return view.tile == tile; });
}

std::vector<std::vector<Batch>> batches_of(const plan::RankProgram& program,
                                           const std::vector<std::vector<LocatedView>>& located,
                                           const std::vector<std::vector<int>>& waits) {
  std::vector<std::vector<Batch>> lanes;
  std::map<plan::Lane, int> last_step;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    if (static_cast<std::size_t>(op.lane) >= lanes.size()) lanes.resize(op.lane + 1);
    std::vector<Batch>& lane = lanes[op.lane];
    if (!op.is_comm() || lane.empty() || last_step[op.lane] != op.step) {
      lane.push_back({.lane = op.lane, .ops = {}, .messages = {}, .waits = {}, .inputs = {}});
      last_step[op.lane] = op.step;
    }
    Batch& batch = lane.back();
    batch.ops.push_back(i);
    if (op.is_comm()) add_to_messages(program, i, batch);
    batch.waits.insert(batch.waits.end(), waits[i].begin(), waits[i].end());
    for (const LocatedView& view : located[i]) {
      if (program.slots[program.tiles[view.tile].slot].external) batch.inputs.push_back(view.tile);
    }
  }
  return lanes;
}

bool is_whole(const plan::RankProgram& program, const View& view) {
  const Tile& tile = program.tiles[view.tile];
  return view.heads == tile.heads && view.blocks == tile.blocks;
}

/// Lets `from` live in `to`, if op `i` moves all of it there unchanged, nothing else touches `to`
/// and nothing `from` afterwards.
void take_home(CompiledProgram& compiled, std::size_t i, const View& to, const View& from) {
  const plan::RankProgram& program = compiled.program;
  const Tile& source = program.tiles[from.tile];
  const Tile& target = program.tiles[to.tile];
  if (!compiled.callers[to.tile] || compiled.callers[from.tile]) return;
  if (!is_whole(program, to) || !is_whole(program, from)) return;
  if (source.heads != target.heads || source.blocks != target.blocks ||
      dtype_of(compiled.problem, source) != dtype_of(compiled.problem, target)) {
    return;
  }
  for (std::size_t j = 0; j < program.ops.size(); ++j) {
    if (j == i) continue;
    if (touches(program.ops[j], to.tile) || (j > i && touches(program.ops[j], from.tile))) return;
  }
  compiled.home[from.tile] = to.tile;
}

void find_homes(CompiledProgram& compiled) {
  const plan::RankProgram& program = compiled.program;
  compiled.callers.assign(program.tiles.size(), false);
  for (const auto* role : {&program.inputs, &program.outputs, &program.saved}) {
    for (const int tile : *role) compiled.callers[tile] = true;
  }
  for (std::size_t t = 0; t < program.tiles.size(); ++t) {
    compiled.home.push_back(static_cast<int>(t));
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const plan::Views& views = program.ops[i].views;
    if (program.ops[i].kind == plan::OpKind::Copy) take_home(compiled, i, views[0], views[1]);
    if (program.ops[i].kind == plan::OpKind::Finish) {
      take_home(compiled, i, views[0], views[2]);
      take_home(compiled, i, views[1], views[3]);
    }
  }
}

/// The kernel calls of an op that attends: every segment of queries against every one of keys.
std::vector<KernelCall> calls_of(const CompiledProgram& compiled, std::size_t op) {
  const plan::OpKind kind = compiled.program.ops[op].kind;
  if (kind != plan::OpKind::Attend && kind != plan::OpKind::AttendGrad) return {};
  const LocatedView& q = compiled.views[op][0];
  const LocatedView& k = compiled.views[op][1];
  std::vector<KernelCall> calls;
  for (std::size_t i = 0; i < q.segments.size(); ++i) {
    for (std::size_t j = 0; j < k.segments.size(); ++j) {
      kernel::Pairs pairs{.q_runs = q.segments[i].positions,
                          .k_runs = k.segments[j].positions,
                          .mask = &compiled.problem.mask,
                          .heads = {.first_q_head = q.first_global_head,
                                    .first_kv_head = k.first_global_head,
                                    .group_size = compiled.problem.group_size()}};
      if (pairs.mask->empty(pairs.q_runs, pairs.k_runs)) continue;
      pairs.prepared = compiled.kernel->prepare(pairs);
      calls.push_back({i, j, std::move(pairs)});
    }
  }
  return calls;
}

}  // namespace

std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner, plan::Pass pass,
                                               plan::Rank rank, const kernel::Kernel& kernel) {
  return compile(planner, planner.program(pass, rank), kernel);
}

std::shared_ptr<const CompiledProgram> compile(const plan::Planner& planner,
                                               plan::RankProgram program,
                                               const kernel::Kernel& kernel) {
  auto result = std::make_shared<CompiledProgram>();
  CompiledProgram& compiled = *result;
  compiled.problem = planner.problem();
  compiled.program = std::move(program);
  compiled.kernel = &kernel;
  for (const Tile& tile : compiled.program.tiles) {
    compiled.shapes.push_back(shape_of(planner.problem(), planner.blocks(), tile));
  }
  find_homes(compiled);
  for (const Op& op : compiled.program.ops) {
    compiled.views.push_back(locate_all(planner.blocks(), compiled.program, op));
  }
  for (std::size_t op = 0; op < compiled.program.ops.size(); ++op) {
    compiled.calls.push_back(calls_of(compiled, op));
  }
  const std::vector<std::vector<int>> waits = dependencies(compiled.program);
  find_fused(compiled, waits);
  compiled.lanes = batches_of(compiled.program, compiled.views, waits);
  find_loans(compiled);
  return result;
}

namespace {

/// Planners and programs of recent problems. A training run has one problem per mask: packed
/// documents bring a new mask every step, so old ones must go.
class Cache {
 public:
  CompiledAttention get(const plan::Problem& problem, const plan::Strategy& strategy,
                        plan::Rank rank, const kernel::Kernel& kernel) {
    const std::shared_ptr<Entry> entry = find(problem, strategy, kernel);
    const std::lock_guard lock(entry->mutex);
    if (!entry->planner) entry->planner.emplace(problem, strategy);
    CompiledAttention& programs = entry->programs[rank];
    if (!programs.forward) {
      programs.forward = compile(*entry->planner, plan::Pass::Forward, rank, kernel);
      programs.backward = compile(*entry->planner, plan::Pass::Backward, rank, kernel);
      programs.replay = compile(*entry->planner, plan::replay(programs.forward->program), kernel);
    }
    return programs;
  }

 private:
  struct Entry {
    plan::Problem problem;
    plan::Strategy strategy;
    const kernel::Kernel* kernel = nullptr;
    std::mutex mutex;
    std::optional<plan::Planner> planner;
    std::map<plan::Rank, CompiledAttention> programs;
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

CompiledAttention compile_cached(const plan::Problem& problem, const plan::Strategy& strategy,
                                 plan::Rank rank, const kernel::Kernel& kernel) {
  static Cache cache;
  return cache.get(problem, strategy, rank, kernel);
}

}  // namespace armillary::attention
