// Ranks compare their shapes, and each its program with that of the rank that it is like in a small
// mesh, which rank 0 proves. So a program that differs is told by the rank that has it.
#include "armillary/train/step_proof.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/plan/step/alike.h"
#include "armillary/plan/step/check_step.h"
#include "armillary/plan/step/repeat.h"
#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/text.h"
#include "armillary/plan/step/words.h"
#include "armillary/proof/digest.h"

namespace armillary::train {
namespace {

using plan::step::StepProgram;
using plan::step::StepShape;
using plan::step::StepTables;

/// All numbers of a shape, and the names of its units.
std::string text_of_shape(const StepShape& shape) {
  const MeshShape& mesh = shape.mesh;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {}\n", mesh.pp, mesh.dp, mesh.cp, mesh.tp,
                  shape.microbatches, shape.zero, shape.reshard_after_forward,
                  shape.sequence_parallel, shape.copies, shape.sharers, shape.bytes.weight,
                  shape.bytes.master, shape.state_on_host, shape.ep);
  for (const MeshAxis axis : mesh.order) text += to_string(axis);
  for (const plan::step::UnitShape& unit : shape.units) {
    text += fmt::format("\n{} {} {} {} {} {} {}", unit.name, unit.split, unit.summed, unit.alike,
                        unit.shared, unit.experts, fmt::join(unit.uses, ","));
    for (const plan::step::UseShards& of_rank : unit.shards) {
      for (const std::vector<std::int64_t>& counts : of_rank) {
        text += fmt::format(" {}", fmt::join(counts, ","));
      }
    }
  }
  return text;
}

void expect_same_shape(comm::Communicator& world, const StepShape& shape) {
  const proof::Digest mine = proof::digest_of(text_of_shape(shape));
  std::vector<proof::Digest> all(static_cast<std::size_t>(world.world()));
  comm::all_gather(world, std::as_bytes(std::span(&mine, 1)),
                   std::as_writable_bytes(std::span(all)));
  const auto other = std::ranges::find_if(all, [&](const auto& one) { return one != all[0]; });
  if (other == all.end()) return;
  comm::meet(world);
  fail<InvalidArgument>(
      "train: the training step of rank {} differs from that of rank 0; one model with the same "
      "parameters is required",
      other - all.begin());
}

[[noreturn]] void refuse(const StepProgram& step, const plan::Diagnostic& fault) {
  fail<PlanError>("train: the training step is not proved: rank {} op {}: {}: {}\n{}", fault.rank,
                  fault.op, fault.rule, fault.text,
                  grid_around(step.world(), step.tables.shape(), fault));
}

/// The op of a model that stands where an op of this program is, or that is the last.
int op_of_model(const ProvedStep& own, const plan::RankProgram& model, int op) {
  const std::vector<plan::Op>& ops = own.program.ops;
  if (op < 0 || ops.empty()) return -1;
  const int place = std::min(op, static_cast<int>(ops.size()) - 1);
  const int row = folded_row(own.tables, ops[static_cast<std::size_t>(place)].step);
  const auto there =
      std::ranges::find_if(model.ops, [&](const plan::Op& other) { return other.step >= row; });
  return static_cast<int>(std::min(there, model.ops.end() - 1) - model.ops.begin());
}

/// Refuses a program that is not what `model` has for its rank.
[[noreturn]] void refuse_difference(const ProvedStep& own, StepProgram model, plan::Rank as,
                                    int op) {
  const StepShape& of_model = model.tables.shape();
  const bool folds = own.tables.shape().microbatches != of_model.microbatches;
  if (own.tables.shape().mesh == of_model.mesh && !folds) {
    model.ranks[static_cast<std::size_t>(as)] = own.program;
    const auto faults = check_step(model.world(), of_model, 1);
    if (!faults.empty()) refuse(model, faults.front());
  }
  const plan::RankProgram& expected = model.ranks[static_cast<std::size_t>(as)];
  refuse(model, {.rank = as,
                 .op = folds ? op_of_model(own, expected, op) : op,
                 .rule = "alike",
                 .text = fmt::format("op {} of rank {} is another one", op, own.program.rank)});
}

}  // namespace

ProvedStep proved_step(comm::Communicator& world, const StepShape& shape, const SeeProgram& see) {
  expect_same_shape(world, shape);
  ProvedStep own{StepTables(shape), {}};
  own.program = rank_program(own.tables, step_measures(own.tables), world.rank());
  if (see) see(own.program);
  comm::run_together(world, [&] {
    const StepTables small(smallest_alike(shape));
    const plan::Rank as = rank_alike(own.tables, world.rank(), small);
    const plan::RankProgram model = rank_program(small, step_measures(small), as);
    const auto difference = plan::step::first_difference({own.tables, own.program}, {small, model});
    if (difference) refuse_difference(own, plan::step::build_step(small.shape()), as, *difference);
    if (world.rank() != 0) return;
    const StepProgram step = plan::step::build_step(small.shape());
    const auto faults = check_small(step, 1);
    if (!faults.empty()) refuse(step, faults.front());
  });
  return own;
}

}  // namespace armillary::train
