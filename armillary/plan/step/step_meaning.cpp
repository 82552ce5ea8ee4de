// Compute ops on types. An op reads its operands, which must be there, then adds terms to what it
// updates. Joint ops are in step_sums.cpp.
#include "armillary/plan/step/step_meaning.h"

#include <fmt/format.h>

#include <algorithm>

#include "armillary/plan/step/storage.h"

namespace armillary::plan::step {

StepMeaning::StepMeaning(const World& world, const StepTables& tables, Diagnostics& diagnostics)
    : world_(world), tables_(tables), diagnostics_(diagnostics) {
  for (const RankProgram& program : world.ranks) {
    memory_.emplace_back(tables, program);
    for (const AxisSet axes : tables.axis_sets()) {
      axes_by_group_.emplace(tables.group(axes, program.rank), axes);
    }
  }
}

void StepMeaning::fault(const Action& at, std::string_view rule, const std::string& text) {
  diagnostics_.add(at.rank, at.op, std::string(rule), "{}", text);
}

std::string StepMeaning::name(const Shown& shown, const TypedCell& cell) const {
  return block_name(tables_, *shown.tile, cell.block);
}

StepMeaning::Shown StepMeaning::operand(const Action& at, std::size_t v) {
  const View& view = op(at).views[v];
  return {&at, &program(at).tiles[view.tile], view, memory_[at.rank].cells(view)};
}

// A part of an operand is not there if the tile is not in its slot, or was not written.
bool StepMeaning::expect_there(const Shown& shown, const TypedCell& cell) {
  if (memory_[shown.at->rank].has(shown.view.tile) && cell.value->is_there()) return true;
  fault(*shown.at, "undefined", fmt::format("reads {}, which is not there", name(shown, cell)));
  return false;
}

StepMeaning::Shown StepMeaning::read(const Action& at, std::size_t v) {
  Shown shown = operand(at, v);
  for (const TypedCell& cell : shown.cells) {
    if (!expect_there(shown, cell)) break;
  }
  return shown;
}

StepMeaning::Shown StepMeaning::read_own(const Action& at, std::size_t v) {
  Shown shown = operand(at, v);
  for (const TypedCell& cell : shown.cells) {
    if (cell.own && !expect_there(shown, cell)) break;
  }
  return shown;
}

StepMeaning::Shown StepMeaning::write(const Action& at, std::size_t v) {
  const View& view = op(at).views[v];
  TypedTiles& memory = memory_[at.rank];
  const int lost = memory.put(view.tile);
  if (lost >= 0) {
    const Tile& tile = program(at).tiles[lost];
    fault(at, "freed",
          fmt::format("takes the slot of {}, which is not {}",
                      block_name(tables_, tile, tile.blocks.front()),
                      tile.tensor == StepTensor::Buffer ? "moved back" : "released"));
  }
  const Tile& tile = program(at).tiles[view.tile];
  if (is_transient(tables_, at.rank, tile) && memory.holds_values(view.tile)) {
    fault(at, "freed",
          fmt::format("begins {}, which is not released",
                      block_name(tables_, tile, tile.blocks.front())));
  }
  return {&at, &tile, view, memory.cells(view)};
}

// A sum that an op begins is empty before it.
StepMeaning::Shown StepMeaning::update(const Action& at, std::size_t v) {
  if (step_words().access(op(at), v) != Access::Write) return read(at, v);
  Shown sum = write(at, v);
  for (const TypedCell& cell : sum.cells) {
    *cell.value = empty_value(tables_, sum.tile->tensor, cell.block);
  }
  return sum;
}

void StepMeaning::add_term(const Shown& sum, const TypedCell& cell, std::size_t term,
                           AxisSet axes) {
  std::int8_t& there = cell.value->terms[term];
  if (there >= 0) {
    fault(*sum.at, "twice",
          fmt::format("{} has {} already", name(sum, cell),
                      term_name(tables_, sum.tile->tensor, cell.block, term)));
  }
  there = static_cast<std::int8_t>(axes);
}

bool StepMeaning::complete(const Shown& shown, const TypedCell& cell) {
  for (std::size_t term = 0; term < cell.value->terms.size(); ++term) {
    const std::int8_t axes = cell.value->terms[term];
    if (axes == 0) continue;
    const std::string of = term_name(tables_, shown.tile->tensor, cell.block, term);
    const std::string lacks =
        axes < 0 ? "lacks " + of
                 : "is partial along " + axis_names(static_cast<AxisSet>(axes)) + " in " + of;
    fault(*shown.at, "partial", fmt::format("reads {}, which {}", name(shown, cell), lacks));
    return false;
  }
  return true;
}

bool StepMeaning::complete(const Shown& shown) {
  return std::ranges::all_of(shown.cells,
                             [&](const TypedCell& cell) { return complete(shown, cell); });
}

bool StepMeaning::whole_old_weight(const Shown& weight) {
  if (weight.view.heads != all_shards(weight)) {
    fault(*weight.at, "shards",
          fmt::format("runs with a shard of {}; all of it is required",
                      name(weight, weight.cells.front())));
    return false;
  }
  for (const TypedCell& cell : weight.cells) {
    if (cell.value->version == 0) continue;
    fault(*weight.at, "undefined",
          fmt::format("reads {}, which is updated already", name(weight, cell)));
    return false;
  }
  return true;
}

bool StepMeaning::next_border(const Shown& from, const Shown& to) {
  const int border = from.view.blocks.front();
  const bool is_next = to.view.blocks.front() == border + 1 && to.view.heads == from.view.heads;
  if (!is_next) {
    fault(*from.at, "border",
          fmt::format("goes from {} to {}; the next border of one microbatch is required",
                      name(from, from.cells.front()), name(to, to.cells.front())));
  }
  return is_next;
}

bool StepMeaning::uses_nothing(const Shown& x) {
  const int unit = x.view.blocks.front();
  const bool plain = tables_.used_by(unit).empty();
  if (!plain) {
    fault(*x.at, "border",
          fmt::format("runs {} without its values", tables_.shape().units[unit].name));
  }
  return plain;
}

void StepMeaning::run(std::span<const Action> parts) {
  const Action& at = parts.front();
  const StepOp kind = op(at).kind;
  if (at.joint < 0) {
    switch (kind) {
      case StepOp::Forward:
        return run_forward(at);
      case StepOp::ForwardPlain:
        return run_forward_plain(at);
      case StepOp::BackwardPlain:
        return run_backward_plain(at);
      case StepOp::Loss:
        return run_loss(at);
      case StepOp::Backward:
        return run_backward(at);
      case StepOp::Release:
        return run_release(at);
      case StepOp::Norm:
        return run_norm(at);
      case StepOp::Update:
        return run_update(at);
      case StepOp::Move:
        return run_move(at);
      default:
        return fault(at, "shards", "is no op of a step");
    }
  }
  const auto axes = axes_by_group_.find(program(at).groups[op(at).peer]);
  if (axes == axes_by_group_.end()) return fault(at, "axes", "goes over ranks that are no axes");
  switch (kind) {
    case StepOp::Gather:
      return run_gather(parts, axes->second);
    case StepOp::GatherInPlace:
      return run_gather_in_place(parts, axes->second);
    case StepOp::AllReduce:
      return run_all_reduce(parts, axes->second);
    case StepOp::ReduceScatter:
      return run_reduce_scatter(parts, axes->second);
    default:
      return run_reduce_in_place(parts, axes->second);
  }
}

void StepMeaning::run_forward(const Action& at) {
  const Shown weight = read(at, ForwardOperand::kWeight);
  const Shown x = read(at, ForwardOperand::kX);
  if (!diagnostics_.empty() || !whole_old_weight(weight) || !complete(x)) return;
  const Shown y = update(at, ForwardOperand::kY);
  if (!diagnostics_.empty() || !next_border(x, y)) return;
  const std::vector<int>& owners = tables_.used_by(x.view.blocks.front());
  const auto owner = std::ranges::find(owners, unit_of(weight));
  if (owner == owners.end()) {
    return fault(at, "border",
                 "uses " + name(weight, weight.cells.front()) + ", which this unit does not use");
  }
  add_term(y, y.cells.front(), owner - owners.begin(), 0);
}

void StepMeaning::run_forward_plain(const Action& at) {
  const Shown x = read(at, ForwardPlainOperand::kX);
  if (!diagnostics_.empty() || !complete(x)) return;
  const Shown y = write(at, ForwardPlainOperand::kY);
  if (!diagnostics_.empty() || !next_border(x, y) || !uses_nothing(x)) return;
  *y.cells.front().value = empty_value(tables_, StepTensor::X, y.view.blocks.front());
}

void StepMeaning::run_backward_plain(const Action& at) {
  const Shown x = read(at, BackwardPlainOperand::kX);
  const Shown dy = read(at, BackwardPlainOperand::kDy);
  if (!diagnostics_.empty() || !complete(x) || !complete(dy) || !next_border(x, dy)) return;
  const Shown dx = write(at, BackwardPlainOperand::kDx);
  if (!diagnostics_.empty() || !next_border(dx, dy) || !uses_nothing(x)) return;
  *dx.cells.front().value = empty_value(tables_, StepTensor::Dx, dx.view.blocks.front());
}

void StepMeaning::run_loss(const Action& at) {
  const Shown y = read(at, LossOperand::kY);
  if (!diagnostics_.empty() || !complete(y)) return;
  const Shown dy = write(at, LossOperand::kDy);
  const bool at_end = y.view.blocks.front() == tables_.units() && dy.view.blocks == y.view.blocks &&
                      dy.view.heads == y.view.heads;
  if (!at_end) return fault(at, "border", "is not of what the last unit gives");
  *dy.cells.front().value = empty_value(tables_, StepTensor::Dx, tables_.units());
  const Shown loss = update(at, LossOperand::kLoss);
  if (!diagnostics_.empty()) return;
  add_term(loss, loss.cells.front(), y.view.heads.begin,
           axes_of(loss_type(tables_), AxisType::Partial));
}

void StepMeaning::run_backward(const Action& at) {
  const Shown weight = read(at, BackwardOperand::kWeight);
  const Shown x = read(at, BackwardOperand::kX);
  const Shown dy = read(at, BackwardOperand::kDy);
  if (!diagnostics_.empty() || !whole_old_weight(weight)) return;
  if (!complete(x) || !complete(dy) || !next_border(x, dy)) return;
  const Shown dx = update(at, BackwardOperand::kDx);
  const Shown grad = update(at, BackwardOperand::kGrad);
  if (!diagnostics_.empty() || !next_border(dx, dy)) return;
  // The unit that runs, and the one whose values it uses.
  const int unit = x.view.blocks.front();
  const int owner = unit_of(weight);
  const std::vector<int>& users = tables_.users_of(owner);
  const std::vector<int>& owners = tables_.used_by(unit);
  const auto user = std::ranges::find(users, unit);
  if (user == users.end() || grad.view.blocks != weight.view.blocks) {
    return fault(at, "border",
                 "has " + name(weight, weight.cells.front()) + " and " +
                     name(grad, grad.cells.front()) +
                     "; a unit with values that it uses is required");
  }
  if (grad.view.heads != all_shards(grad)) {
    return fault(at, "shards", "adds to a shard of " + name(grad, grad.cells.front()));
  }
  add_term(dx, dx.cells.front(), std::ranges::find(owners, owner) - owners.begin(), 0);
  const std::size_t term = x.view.heads.begin * users.size() + (user - users.begin());
  for (const TypedCell& cell : grad.cells) {
    const MeshType type = gradient_type(tables_, tables_.parts()[cell.block].use);
    add_term(grad, cell, term, axes_of(type, AxisType::Partial));
    if (!diagnostics_.empty()) return;
  }
}

void StepMeaning::run_release(const Action& at) {
  const View& view = op(at).views.front();
  const Tile& tile = program(at).tiles[view.tile];
  const Shown shown = read(at, 0);
  if (!diagnostics_.empty()) return;
  if (tile.tensor == StepTensor::Buffer) {
    return fault(
        at, "host",
        fmt::format("releases {}, which is not moved back", name(shown, shown.cells.front())));
  }
  if (!is_transient(tables_, at.rank, tile) || !plan::is_whole(tile, view)) {
    return fault(
        at, "freed",
        fmt::format("releases {}, which is no transient tile", name(shown, shown.cells.front())));
  }
  for (const TypedCell& cell : shown.cells) *cell.value = {};
}

// A square counts along the axes over which the norm is summed; copies count the same.
void StepMeaning::run_norm(const Action& at) {
  const Shown grad = read(at, NormOperand::kGrad);
  if (!diagnostics_.empty() || !complete(grad)) return;
  const Shown norm = update(at, NormOperand::kNorm);
  if (!diagnostics_.empty()) return;
  if (grad.view.heads != state_shards(tables_, unit_of(grad), at.rank)) {
    return fault(
        at, "shards",
        "counts other shards of " + name(grad, grad.cells.front()) + " than the rank updates");
  }
  for (const TypedCell& cell : grad.cells) {
    if (cell.own) add_term(norm, norm.cells.front(), cell.block, tables_.norm_axes());
  }
}

void StepMeaning::run_update(const Action& at) {
  const Shown grad = read(at, UpdateOperand::kGrad);
  const Shown norm = read(at, UpdateOperand::kNorm);
  if (!diagnostics_.empty() || !complete(grad) || !complete(norm)) return;
  const bool on_host = tables_.shape().state_on_host;
  const Tile& state = program(at).tiles[op(at).views[UpdateOperand::kState].tile];
  if (!(state.tensor == (on_host ? StepTensor::Buffer : StepTensor::State))) {
    return fault(at, "host",
                 fmt::format("updates {}; the {} is required",
                             block_name(tables_, state, state.blocks.front()),
                             on_host ? "buffer of a state on the host" : "state on the device"));
  }
  for (const std::size_t v : {UpdateOperand::kWeight, UpdateOperand::kState}) {
    const Shown values = read(at, v);
    if (!diagnostics_.empty()) return;
    for (const TypedCell& cell : values.cells) {
      if (cell.value->version > 0) {
        return fault(at, "twice", fmt::format("updates {} again", name(values, cell)));
      }
      ++cell.value->version;
    }
  }
}

// A buffer has the values of its unit's state from the move that fetches them to the move back.
void StepMeaning::run_move(const Action& at) {
  const Shown from = read(at, MoveOperand::kFrom);
  if (!diagnostics_.empty()) return;
  const Shown to = write(at, MoveOperand::kTo);
  if (!diagnostics_.empty()) return;
  const bool fetches = from.tile->tensor == StepTensor::State;
  const bool is_legal =
      fetches ? to.tile->tensor == StepTensor::Buffer
              : from.tile->tensor == StepTensor::Buffer && to.tile->tensor == StepTensor::State;
  const bool is_whole = plan::is_whole(*from.tile, from.view) && plan::is_whole(*to.tile, to.view);
  if (!tables_.shape().state_on_host || !is_legal || !is_whole) {
    return fault(at, "host",
                 fmt::format("moves {} to {}; a state on the host and its buffer are required",
                             name(from, from.cells.front()), name(to, to.cells.front())));
  }
  for (std::size_t c = 0; c < from.cells.size(); ++c) {
    if (from.cells[c].value->version != (fetches ? 0 : 1)) {
      return fault(at, "host",
                   fmt::format("moves {} {} its update", name(from, from.cells[c]),
                               fetches ? "after" : "before"));
    }
    *to.cells[c].value = *from.cells[c].value;
    if (!fetches) *from.cells[c].value = {};
  }
}

void StepMeaning::check_end() {
  for (const RankProgram& program : world_.ranks) {
    TypedTiles& memory = memory_[program.rank];
    const auto fault_at_end = [&](std::string_view rule, int tile, std::string_view what) {
      const Tile& of = program.tiles[tile];
      diagnostics_.add(program.rank, -1, std::string(rule), "{} {}",
                       block_name(tables_, of, of.blocks.front()), what);
    };
    for (const int id : program.outputs) {
      const Tile& tile = program.tiles[id];
      for (const TypedCell& cell : memory.cells({id, tile.heads, tile.blocks})) {
        const bool updates = step_words()[tile.tensor].side == kUnitSide;
        const bool is_whole =
            std::ranges::all_of(cell.value->terms, [](std::int8_t axes) { return axes == 0; });
        if (!memory.has(id) || cell.value->version != (updates ? 1 : 0)) {
          return fault_at_end("complete", id, updates ? "is not updated" : "is not there");
        }
        if (!is_whole) return fault_at_end("complete", id, "is not the sum of all ranks");
      }
    }
    for (int id = 0; id < static_cast<int>(program.tiles.size()); ++id) {
      if (is_transient(tables_, program.rank, program.tiles[id]) && memory.holds_values(id)) {
        return fault_at_end("freed", id, "is not released");
      }
    }
  }
}

}  // namespace armillary::plan::step
