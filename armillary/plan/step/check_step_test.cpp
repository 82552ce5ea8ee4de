// check_step_test.cpp: every small step is proved; programs that are wrong are refused by the rule
// that they break, in words.
#include "armillary/plan/step/check_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/program/mutate.h"
#include "armillary/plan/program/program_json.h"
#include "armillary/plan/step/step_program.h"
#include "armillary/plan/step/testing/step_shapes.h"
#include "armillary/plan/step/words.h"

namespace armillary::plan::step {
namespace {

using testing::HasSubstr;

std::vector<Diagnostic> faults_of(const StepProgram& step) {
  return check_step(step.world(), step.tables.shape());
}

TEST(Step, IsProvedForAllShapes) {
  for (const StepShape& shape : small_steps(small_meshes())) {
    for (const bool reshard : {true, false}) {
      for (const bool sequence_parallel : {true, false}) {
        StepShape one = shape;
        one.reshard_after_forward = reshard;
        one.sequence_parallel = sequence_parallel;
        EXPECT_EQ(faults_of(build_step(one)), std::vector<Diagnostic>{}) << name_of(one);
      }
    }
  }
}

TEST(Step, IsProvedWithCopiesSharersAndUnevenShards) {
  for (StepShape shape : grouped_steps()) {
    for (const bool reshard : {true, false}) {
      shape.reshard_after_forward = reshard;
      EXPECT_EQ(faults_of(build_step(shape)), std::vector<Diagnostic>{}) << name_of(shape);
    }
  }
}

TEST(Step, IsProvedWithExperts) {
  for (StepShape shape : expert_steps()) {
    for (const bool reshard : {true, false}) {
      shape.reshard_after_forward = reshard;
      EXPECT_EQ(faults_of(build_step(shape)), std::vector<Diagnostic>{}) << name_of(shape);
    }
  }
}

TEST(Step, IsProvedWithStateOnTheHost) {
  std::vector<StepShape> shapes = small_steps(small_meshes());
  for (const std::vector<StepShape>& more : {grouped_steps(), expert_steps()}) {
    shapes.insert(shapes.end(), more.begin(), more.end());
  }
  for (StepShape& shape : shapes) {
    shape.state_on_host = true;
    const StepProgram step = build_step(shape);
    EXPECT_EQ(faults_of(step), std::vector<Diagnostic>{}) << name_of(shape);
    std::set<int> buffers;
    for (const Tile& tile : step.ranks[0].tiles) {
      if (tile.tensor == StepTensor::Buffer) buffers.insert(tile.slot);
    }
    EXPECT_EQ(buffers.size(), 2U) << name_of(shape);
  }
}

TEST(Step, IsProvedWithUnitsThatShareMuch) {
  StepShape shape{.units = {{.name = "a", .split = 9},
                            {.name = "b", .split = 8, .uses = {0}},
                            {.name = "c", .uses = {0, 1}},
                            {.name = "d", .alike = 7, .uses = {1}}},
                  .mesh = {.cp = 2, .tp = 2},
                  .microbatches = 2};
  for (shape.zero = 0; shape.zero <= 3; ++shape.zero) {
    EXPECT_EQ(faults_of(build_step(shape)), std::vector<Diagnostic>{}) << shape.zero;
  }
}

TEST(Step, ComesBackFromJson) {
  for (const RankProgram& program : build_step(small_step({.dp = 2, .tp = 2}, 3, 2, true)).ranks) {
    EXPECT_EQ(parse_program_json(to_json(program), step_words()), program);
  }
}

/// The first parts that the ops of a kind in a row show; those of units, if tp is 1.
std::vector<int> parts_in_row(const StepProgram& step, int row, StepOp kind) {
  std::vector<int> parts;
  for (const Op& op : step.ranks[0].ops) {
    if (op.step == row && op.kind == kind) parts.push_back(op.views.front().blocks.front());
  }
  return parts;
}

/// Stage 3: gathers of the next unit and sums of the one before stand beside each run.
TEST(Step, GathersAheadAndSumsBehind) {
  const StepProgram step = build_step(small_step({.cp = 2}, 3, 1, false));
  const auto units_in_row = [&](int row, StepOp kind) { return parts_in_row(step, row, kind); };
  using Units = std::vector<int>;
  // Rows 0 to 2 are forward, 3 to 5 backward.
  EXPECT_EQ(units_in_row(0, StepOp::Gather), (Units{0, 1}));
  EXPECT_EQ(units_in_row(0, StepOp::Release), Units{0});
  EXPECT_EQ(units_in_row(1, StepOp::Gather), (Units{2}));
  EXPECT_EQ(units_in_row(1, StepOp::Release), Units{}) << "the layer stays over the head";
  EXPECT_EQ(units_in_row(2, StepOp::Gather), Units{});
  EXPECT_EQ(units_in_row(2, StepOp::Release), Units{}) << "the head runs next, too";
  EXPECT_EQ(units_in_row(3, StepOp::Gather), Units{}) << "the layer is there";
  EXPECT_EQ(units_in_row(4, StepOp::Gather), (Units{0}));
  EXPECT_EQ(units_in_row(4, StepOp::ReduceScatter), (Units{2}));
  EXPECT_EQ(units_in_row(4, StepOp::Release), (Units{2, 1})) << "the gradient, then the weight";
  EXPECT_EQ(units_in_row(5, StepOp::ReduceScatter), (Units{1}));
  EXPECT_EQ(units_in_row(6, StepOp::ReduceScatter), (Units{0}));
}

/// Stage 0: beside each run the unit before it is summed, and the one before that gathered.
TEST(Step, SumsAndGathersGradientsBehindTheirRuns) {
  using Units = std::vector<int>;
  for (const int microbatches : {1, 3}) {
    const StepProgram step = build_step(small_step({.dp = 2, .cp = 2}, 0, microbatches, false));
    const auto sums = [&](int row) { return parts_in_row(step, row, StepOp::ReduceInPlace); };
    const auto gathers = [&](int row) { return parts_in_row(step, row, StepOp::GatherInPlace); };
    // The last three rows of runs are the backward of the last microbatch.
    const int end = 6 * microbatches;
    for (int row = 0; row <= end - 3; ++row) {
      EXPECT_EQ(sums(row), Units{}) << row;
      EXPECT_EQ(gathers(row), Units{}) << row;
    }
    EXPECT_EQ(sums(end - 2), Units{2});
    EXPECT_EQ(gathers(end - 2), Units{});
    EXPECT_EQ(sums(end - 1), Units{1});
    EXPECT_EQ(gathers(end - 1), Units{2});
    EXPECT_EQ(sums(end), Units{0});
    EXPECT_EQ(gathers(end), (Units{1, 0}));
  }
  // A table that the head uses too is complete when the embedding has run.
  const StepProgram tied = build_step(small_step({.dp = 2}, 0, 1, true));
  EXPECT_EQ(parts_in_row(tied, 6, StepOp::ReduceInPlace), Units{0});
  // One replica has nothing to sum.
  for (const MeshShape& mesh : {MeshShape{}, MeshShape{.tp = 2}}) {
    const StepProgram alone = build_step(small_step(mesh, 0, 1, false));
    for (const Op& op : alone.ranks[0].ops) {
      EXPECT_FALSE(op.kind == StepOp::ReduceInPlace || op.kind == StepOp::GatherInPlace);
    }
  }
}

/// The parts of weights that an op of a kind shows, in the order of the program.
std::vector<int> weights_of(const StepShape& shape, StepOp kind) {
  const StepProgram step = build_step(shape);
  std::vector<int> weights;
  for (const Op& op : step.ranks[0].ops) {
    const Tile& tile = step.ranks[0].tiles[op.views.front().tile];
    const bool is_weight = tile.tensor == StepTensor::Weight;
    if (is_weight && op.kind == kind) weights.push_back(tile.blocks.front());
  }
  return weights;
}

/// Units that run again behind one other, at the end of forward or between microbatches, stay; so
/// do tied values until the end of forward.
TEST(Step, GathersNothingThatIsThere) {
  using testing::ElementsAre;
  StepShape shape{.units = {}, .mesh = {.dp = 2}, .microbatches = 2, .zero = 3};
  for (int unit = 0; unit < 5; ++unit) shape.units.push_back({.name = "unit", .split = 8});
  EXPECT_THAT(weights_of(shape, StepOp::Gather),
              ElementsAre(0, 1, 2, 3, 4, 2, 1, 0, 2, 3, 4, 2, 1, 0));
  EXPECT_THAT(weights_of(shape, StepOp::Release),
              ElementsAre(0, 1, 2, 4, 3, 2, 0, 1, 2, 4, 3, 2, 1, 0));
  shape.reshard_after_forward = false;
  EXPECT_THAT(weights_of(shape, StepOp::Gather), ElementsAre(0, 1, 2, 3, 4, 2, 3, 4));
  shape.reshard_after_forward = true;
  shape.units.back().uses = {0};
  EXPECT_THAT(weights_of(shape, StepOp::Gather),
              ElementsAre(0, 1, 2, 3, 4, 2, 1, 0, 2, 3, 4, 2, 1, 0));
  EXPECT_THAT(weights_of(shape, StepOp::Release),
              ElementsAre(1, 2, 0, 4, 3, 2, 1, 2, 0, 4, 3, 2, 1, 0));
}

/// How often each stage moves parameters and gradients.
TEST(Step, HasTheCollectivesOfItsStage) {
  const auto count = [](const StepShape& shape, StepOp kind) {
    const StepProgram step = build_step(shape);
    return std::ranges::count_if(step.ranks[0].ops, [&](const Op& op) { return op.kind == kind; });
  };
  constexpr int kUnits = 3;
  constexpr int kMicrobatches = 4;
  const auto shape = [](int zero) { return small_step({.dp = 2}, zero, kMicrobatches, false); };
  EXPECT_EQ(count(shape(0), StepOp::AllReduce), 1) << "the loss";
  EXPECT_EQ(count(shape(0), StepOp::ReduceInPlace), kUnits);
  EXPECT_EQ(count(shape(0), StepOp::GatherInPlace), kUnits);
  EXPECT_EQ(count(shape(1), StepOp::ReduceInPlace), kUnits);
  EXPECT_EQ(count(shape(1), StepOp::GatherInPlace), kUnits);
  EXPECT_EQ(count(shape(2), StepOp::ReduceScatter), kUnits * kMicrobatches);
  EXPECT_EQ(count(shape(2), StepOp::GatherInPlace), kUnits);
  EXPECT_EQ(count(shape(3), StepOp::ReduceScatter), kUnits * kMicrobatches);
  // The head runs twice in a row in every microbatch, the embedding where one microbatch follows
  // another; the layer between them stays.
  EXPECT_EQ(count(shape(3), StepOp::Gather), kMicrobatches + (kMicrobatches + 1) + 1);
  StepShape stays = shape(3);
  stays.reshard_after_forward = false;
  EXPECT_EQ(count(stays, StepOp::Gather), kMicrobatches + 2);
  EXPECT_EQ(count(small_step({}, 3, 2, false), StepOp::Gather), 0) << "one replica has no ZeRO";
}

/// A change of the programs of a step, and the first fault that is found in them.
std::string fault_of(const StepShape& shape, const std::function<void(StepProgram&)>& change) {
  StepProgram step = build_step(shape);
  change(step);
  const std::vector<Diagnostic> faults = faults_of(step);
  return faults.empty() ? "" : faults[0].rule + ": " + faults[0].text;
}

/// Erases the ops of a kind from all ranks.
std::function<void(StepProgram&)> without(StepOp kind) {
  return [kind](StepProgram& step) {
    for (RankProgram& program : step.ranks) {
      std::erase_if(program.ops, [&](const Op& op) { return op.kind == kind; });
    }
  };
}

/// Changes the first op of a kind on all ranks.
std::function<void(StepProgram&)> with_first(StepOp kind,
                                             const std::function<void(RankProgram&, Op&)>& change) {
  return [kind, change](StepProgram& step) {
    for (RankProgram& program : step.ranks) {
      change(program,
             *std::ranges::find_if(program.ops, [&](const Op& op) { return op.kind == kind; }));
    }
  };
}

TEST(Step, FaultsAreNamed) {
  const auto shape = [](int zero) { return small_step({.dp = 2, .tp = 2}, zero, 2, false); };
  EXPECT_EQ(fault_of(shape(0), without(StepOp::ReduceInPlace)),
            "early: gathers grad of head, which is partial along dp in microbatch 0 of head");
  EXPECT_EQ(fault_of(shape(0), without(StepOp::GatherInPlace)),
            "undefined: reads grad of embedding, which is not there");
  EXPECT_EQ(fault_of(small_step({.dp = 2}, 0, 2, false), without(StepOp::AllReduce)),
            "complete: loss is not the sum of all ranks");
  EXPECT_EQ(fault_of(shape(3), without(StepOp::Gather)),
            "undefined: reads weight of embedding, which is not there");
  EXPECT_EQ(fault_of(shape(1), without(StepOp::GatherInPlace)),
            "complete: weight of embedding is not updated");
  EXPECT_EQ(fault_of(shape(0), without(StepOp::Update)),
            "complete: weight of embedding is not updated");
  EXPECT_THAT(fault_of(shape(3), without(StepOp::Release)), HasSubstr("which is not released"));
  EXPECT_EQ(fault_of(shape(0), with_first(StepOp::Forward,
                                          [](RankProgram&, Op& op) {
                                            op.views[ForwardOperand::kWeight].heads = {0, 1};
                                          }))
                .substr(0, 7),
            "shards:");
  EXPECT_EQ(fault_of(shape(1), [](StepProgram& step) { step.ranks[1].inputs.pop_back(); }),
            "caller: the inputs are not those of the shape");
}

/// A unit that runs once more behind its update.
TEST(Step, UpdatedValuesRunInTheNextStepOnly) {
  const auto run_again = [](StepProgram& step) {
    for (RankProgram& program : step.ranks) {
      const auto run = std::ranges::find_if(
          program.ops, [](const Op& op) { return op.kind == StepOp::Forward; });
      Op again = *run;
      again.step = program.ops.back().step;
      program.ops.push_back(again);
    }
  };
  EXPECT_EQ(fault_of(small_step({.dp = 2}, 0, 1, false), run_again),
            "undefined: reads weight of embedding, which is updated already");
}

TEST(Step, FaultsOfStateOnTheHostAreNamed) {
  StepShape shape = small_step({.dp = 2}, 1, 1, false);
  const auto on_device = with_first(StepOp::Update, [](RankProgram& program, Op& op) {
    const BlockIds blocks = op.views[UpdateOperand::kState].blocks;
    const auto state = std::ranges::find_if(program.tiles, [&](const Tile& tile) {
      return tile.tensor == StepTensor::State && tile.blocks == blocks;
    });
    op.views[UpdateOperand::kState].tile = static_cast<int>(state - program.tiles.begin());
  });
  const auto add_release = [](StepProgram& step) {
    for (RankProgram& program : step.ranks) {
      const auto update =
          std::ranges::find_if(program.ops, [](const Op& op) { return op.kind == StepOp::Update; });
      const Op release{.kind = StepOp::Release,
                       .step = update->step,
                       .views = {update->views[UpdateOperand::kState]}};
      program.ops.insert(update, release);
    }
  };
  EXPECT_EQ(fault_of(shape, add_release),
            "freed: releases state of embedding, which is no transient tile");
  shape.state_on_host = true;
  EXPECT_EQ(fault_of(shape, without(StepOp::Move)),
            "undefined: reads buffer of embedding, which is not there");
  EXPECT_EQ(fault_of(shape, add_release),
            "host: releases buffer of embedding, which is not moved back");
  EXPECT_THAT(fault_of(shape, on_device), testing::StartsWith("host: "));
  const auto on_compute = [](RankProgram&, Op& op) { op.lane = kCompute; };
  EXPECT_EQ(fault_of(shape, with_first(StepOp::Move, on_compute)),
            "well_formed: move on the compute lane");
}

/// A sum over tp as well counts the values of a part that is split once too often; a sum of shards
/// has no other axes than these.
TEST(Step, ASumOverAxesOfOtherValuesIsRefused) {
  StepShape shape = small_step({.dp = 2, .tp = 2}, 0, 1, false);
  const auto fault_over_all = [&](StepOp kind, AxisSet axes) {
    const StepTables tables(shape);
    const auto place = [&](AxisSet set) {
      const auto at = std::ranges::find(tables.axis_sets(), set);
      return static_cast<int>(at - tables.axis_sets().begin());
    };
    return fault_of(shape, [&](StepProgram& step) {
      for (RankProgram& program : step.ranks) {
        std::ranges::find_if(program.ops, [&](const Op& op) {
          return op.kind == kind && op.peer == place(axes);
        })->peer = place(axes | bit(MeshAxis::Tp));
      }
    });
  };
  EXPECT_EQ(fault_over_all(StepOp::ReduceInPlace, bit(MeshAxis::Dp)),
            "shards: goes over dp, tp; shards lie over dp");
  shape.copies = 2;
  EXPECT_EQ(fault_over_all(StepOp::AllReduce, kCopiesAxis),
            "axes: sums grad of embedding over tp, copies, but along tp it is not partial in "
            "microbatch 0 of embedding");
}

/// Sums over tp stand beside the next run, smaller groups first; those over copies at the end.
TEST(Step, SumsOverTpThenReplicasThenCopies) {
  StepShape shape = small_step({.dp = 4, .tp = 4}, 3, 1, false);
  shape.copies = shape.sharers = 2;
  shape.units[1].shared = 7;
  const StepProgram step = build_step(shape);
  std::vector<std::string> sums;
  for (const Op& op : step.ranks[0].ops) {
    const bool of_layer = step_words()[op.kind].joint &&
                          step.ranks[0].tiles[op.views.front().tile].tensor == StepTensor::Grad &&
                          step.tables.parts()[op.views.front().blocks.front()].unit == 1;
    if (of_layer) sums.push_back(axis_names(step.tables.axis_sets()[op.peer]));
  }
  EXPECT_THAT(sums, testing::ElementsAre("sharers", "tp, sharers", "dp", "copies"));
}

/// A gather and a sum of one group change places on one rank: lanes keep their orders, but both go
/// over one communicator.
TEST(Step, RanksComeToTheOpsOfAGroupInOneOrder) {
  const auto swap = [](StepProgram& step) {
    std::vector<Op>& ops = step.ranks[1].ops;
    const auto sum =
        std::ranges::find_if(ops, [](const Op& op) { return op.kind == StepOp::ReduceScatter; });
    ASSERT_TRUE(sum[1].kind == StepOp::Gather);
    std::iter_swap(sum, sum + 1);
  };
  EXPECT_THAT(fault_of(small_step({.cp = 2}, 3, 1, false), swap),
              HasSubstr("lanes: is on lane 1; rank 0 comes to one of lane 2 here, its op "));
}

/// A sum of KV heads over all of tp counts those of other heads.
TEST(Step, ASumOverRanksWithOtherValuesIsRefused) {
  StepShape shape = small_step({.tp = 4}, 0, 1, false);
  shape.sharers = 2;
  shape.units[1].shared = 7;
  const StepTables tables(shape);
  const auto over_tp = [&](StepProgram& step) {
    const auto axes_at = std::ranges::find(tables.axis_sets(), tables.tp_axis());
    for (RankProgram& program : step.ranks) {
      for (Op& op : program.ops) {
        if (op.kind == StepOp::AllReduce && tables.axis_sets()[op.peer] == kSharersAxis) {
          op.peer = static_cast<int>(axes_at - tables.axis_sets().begin());
        }
      }
    }
  };
  EXPECT_EQ(fault_of(shape, over_tp),
            "axes: sums grad of layer over tp, sharers, but along tp it is not partial in "
            "microbatch 0 of layer");
}

TEST(Step, AUnitRunsWithItsValues) {
  StepShape shape = small_step({.dp = 2}, 1, 1, false);
  shape.units.push_back({.name = "plain", .uses = {}});
  EXPECT_EQ(fault_of(shape, [](StepProgram&) {}), "");
  EXPECT_EQ(fault_of(shape, without(StepOp::ForwardPlain)),
            "undefined: reads x4 of microbatch 0, which is not there");
  // The layer runs on its input alone.
  const auto plain = [](StepProgram& step) {
    for (RankProgram& program : step.ranks) {
      Op& op = *std::ranges::find_if(program.ops, [&](const Op& other) {
        return other.kind == StepOp::Forward && other.views[ForwardOperand::kX].blocks.front() == 1;
      });
      op = {.kind = StepOp::ForwardPlain,
            .step = op.step,
            .views = {op.views[ForwardOperand::kX], op.views[ForwardOperand::kY]}};
    }
  };
  EXPECT_EQ(fault_of(shape, plain), "border: runs layer without its values");
}

TEST(Step, ProgramsOfAnotherShapeAreRefused) {
  const StepProgram step = build_step(small_step({.dp = 2}, 1, 1, false));
  const auto rule = [&](const StepShape& other) { return check_step(step.world(), other)[0].rule; };
  EXPECT_EQ(rule(small_step({.dp = 2}, 2, 1, false)), "bytes");
  EXPECT_EQ(rule(small_step({.dp = 2}, 3, 1, false)), "caller");
  EXPECT_EQ(rule(small_step({.dp = 3}, 1, 1, false)), "caller");
}

/// Every op of every rank is needed.
TEST(Step, NoOpMayBeDropped) {
  for (const int zero : {0, 1, 2, 3}) {
    const StepProgram step = build_step(small_step({.cp = 2, .tp = 2}, zero, 2, true));
    std::set<std::size_t> kinds;
    for (const Mutation& mutation : mutations(step.world())) {
      if (mutation.kind != MutationKind::Dropped) continue;
      std::vector<RankProgram> ranks = step.ranks;
      mutate(step.measures, ranks, mutation);
      kinds.insert(step.ranks[mutation.rank].ops[mutation.op].kind.number());
      EXPECT_FALSE(check_step(World{step.measures, ranks}, step.tables.shape()).empty())
          << zero << " " << to_string(mutation, step_words());
    }
    EXPECT_GE(kinds.size(), 6U);
  }
}

TEST(StepShape, SaysWhatIsWrong) {
  const auto text = [](const std::function<void(StepShape&)>& change) {
    StepShape shape = small_step({.dp = 2}, 0, 1, true);
    change(shape);
    try {
      check_shape(shape);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(text([](StepShape&) {}), "");
  EXPECT_EQ(text([](StepShape& s) { s.zero = 4; }),
            "step: ZeRO stage 4; 0 to 3 is required; nearest: 3");
  EXPECT_EQ(text([](StepShape& s) { s.microbatches = 0; }),
            "step: 0 microbatches; at least 1 is required");
  EXPECT_EQ(text([](StepShape& s) { s.units.clear(); }), "step: 0 units; at least 1 is required");
  EXPECT_EQ(text([](StepShape& s) { s.units[1].split = -1; }),
            "step: unit layer has -1 values; 0 to 2^56 are required; nearest: 0");
  EXPECT_EQ(text([](StepShape& s) { s.units[2].uses = {2}; }),
            "step: unit head uses values of unit 2; other units that have values, ascending below "
            "3, are required");
  EXPECT_EQ(text([](StepShape& s) { s.units.assign(1, UnitShape{.name = "plain", .uses = {}}); }),
            "step: no unit has values; at least 1 value is required");
  EXPECT_EQ(text([](StepShape& s) { s.copies = 3; }),
            "step: 3 copies along dp 2; a divisor of 2 is required; nearest: 2");
  EXPECT_EQ(text([](StepShape& s) { s.sharers = 2; }),
            "step: 2 sharers along tp 1; a divisor of 1 below it is required; nearest: 1");
  EXPECT_EQ(text([](StepShape& s) {
              s.mesh.tp = 2;
              s.units[1].shared = 1;
            }),
            "step: unit layer has values that are shared, but sharers are 1; at least 2 are "
            "required");
  EXPECT_EQ(text([](StepShape& s) {
              cut_unevenly(s);
              ++s.units[0].shards[0][0][1];
            }),
            "step: the shards of unit embedding hold 24 values of one use; 23 in 2 shards on each "
            "of 1 ranks along tp are required");
  EXPECT_EQ(text([](StepShape& s) { s.ep = 2; }),
            "step: ep 2 with a model that has no experts; ep 1 is required");
  EXPECT_EQ(text([](StepShape& s) {
              s.mesh = {.dp = 2, .cp = 4, .tp = 2};
              add_experts(s, 6);
            }),
            "step: ep 6 in tp 2 x cp 4 x dp 2; whole axes from the left, and a divisor of the next "
            "one, are required; nearest: ep 4");
  EXPECT_THAT(text([](StepShape& s) {
                s.mesh = {.dp = 2, .cp = 4, .tp = 2};
                add_experts(s, 7);
              }),
              HasSubstr("nearest: ep 8"));
  EXPECT_THAT(text([](StepShape& s) { add_experts(s, 3); }), HasSubstr("nearest: ep 2"));
  EXPECT_EQ(text([](StepShape& s) {
              add_experts(s, 1);
              s.units[2].split = 1;
            }),
            "step: unit experts has 29 values of experts and 1 others; a unit of its own for "
            "experts is required");
  EXPECT_THAT(text([](StepShape& s) { s.mesh.pp = 2; }), HasSubstr("step: pp 2; 1 is required"));
  EXPECT_THAT(text([](StepShape& s) { s.mesh.dp = 0; }), HasSubstr("mesh: dp 0"));
  EXPECT_THAT(text([](StepShape& s) {
                s.mesh.tp = 2;
                s.units[0].split = s.units[1].split = 0;
                s.units[0].alike = 1;
              }),
              HasSubstr("step: tp 2, but no unit has values that are split"));
}

}  // namespace
}  // namespace armillary::plan::step
