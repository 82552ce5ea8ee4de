// step_groups_test.cpp: joint ops of programs over the groups of ranks that they name: the bytes
// that each rank sends, and names that are refused.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/plan/step/traffic.h"
#include "armillary/plan/step/words.h"
#include "armillary/train/square_sum.h"
#include "armillary/train/testing/step_rank.h"

namespace armillary::train {
namespace {

using plan::step::StepTensor;

/// Parts of a model that may be there or not.
struct UnitOptions {
  bool tied = false;
  bool experts = false;
};

/// Parameters that ranks along tp cut, have in pairs if there are four, or all have, and experts,
/// whose unit uses one of these too. Units send nothing, so a rank sends what its program says.
class UnitsAlongTp : public model::Model {
 public:
  explicit UnitsAlongTp(const UnitOptions& options) : options_(options) {}
  std::vector<std::string> units() const override {
    if (options_.experts) return {"first", "middle", "plain", "experts", "last"};
    return {"first", "middle", "plain", "last"};
  }
  std::vector<model::Parameter> parameters() const override {
    constexpr auto kColumns = model::TpSplit::Columns;
    const model::Init init{.deviation = 0.1};
    std::vector<std::string> users{"first"};
    if (options_.tied) users.emplace_back("last");
    std::vector<std::string> norm_users{"middle"};
    if (options_.experts) norm_users.emplace_back("experts");
    std::vector<model::Parameter> all{
        {.name = "table", .shape = {9, 3}, .placement = kColumns, .units = users, .init = init},
        {.name = "query",
         .shape = {8, 3},
         .placement = kColumns,
         .units = {"middle"},
         .init = init},
        {.name = "key",
         .shape = {4, 3},
         .placement = kColumns,
         .grain = 2,
         .units = {"middle"},
         .init = init,
         .copied = true},
        {.name = "norm", .shape = {3}, .units = norm_users, .init = init},
        {.name = "head", .shape = {7}, .placement = kColumns, .units = {"last"}, .init = init},
        {.name = "scale", .shape = {}, .units = {"last"}, .init = init}};
    if (!options_.experts) return all;
    all.push_back({.name = "experts",
                   .shape = {8, 5},
                   .units = {"experts"},
                   .init = init,
                   .is_expert = true});
    return all;
  }
  at::Tensor run(int unit, const model::Weights& weights, const at::Tensor& x,
                 const model::ModelInputs&) override {
    const auto sum = [&](const char* name) { return weights.at(name).sum(); };
    if (unit == 0) return sum("table");
    if (unit == 1) return x * (sum("query") + sum("key") + sum("norm"));
    if (unit == 2) return x.tanh();
    if (options_.experts && unit == 3) return x * (sum("experts") + sum("norm"));
    const at::Tensor y = x * sum("head") * sum("scale");
    return options_.tied ? y + sum("table") : y;
  }
  cost::ModelCost cost() const override { return {}; }

 private:
  UnitOptions options_;
};

/// Bytes of an op.
struct OpBytes {
  std::int64_t mine = 0;  ///< This rank sends them.
  std::int64_t all = 0;   ///< All ranks of its group together do.
};

OpBytes bytes_of_op(const ProvedStep& step, const plan::Op& op, std::int64_t weight_bytes) {
  const auto& [tables, program] = step;
  const plan::step::StepTraffic traffic = traffic_of(tables, program, op);
  if (traffic.rounds == 0) return {};
  const std::int64_t ranks = traffic.ranks;
  // The sum of squares is gathered, as it is summed without rounding.
  if (traffic.tensor == StepTensor::Norm) {
    const auto bytes = static_cast<std::int64_t>(SquareSum().bytes().size());
    return {bytes * (ranks - 1), bytes * (ranks - 1) * ranks};
  }
  constexpr std::int64_t kLossBytes = sizeof(double);
  constexpr std::int64_t kGradientBytes = sizeof(float);
  const std::int64_t bytes = traffic.tensor == StepTensor::Weight ? weight_bytes
                             : traffic.tensor == StepTensor::Loss ? kLossBytes
                                                                  : kGradientBytes;
  const std::int64_t all = bytes * traffic.rounds * traffic.values * (ranks - 1);
  std::int64_t own = 0;  // This rank's part of the values.
  if (traffic.rounds == 2) {
    const std::vector<plan::Rank>& group = program.groups[static_cast<std::size_t>(op.peer)];
    const std::int64_t place = std::ranges::find(group, program.rank) - group.begin();
    own = piece_begin(traffic.values, ranks, place + 1) - piece_begin(traffic.values, ranks, place);
  } else {
    for (const int part : op.views.front().blocks) {
      const int unit = tables.parts()[static_cast<std::size_t>(part)].unit;
      own += tables.values(part, program.rank, tables.own_shard(unit, program.rank));
    }
  }
  // A gather sends its own to all others, a sum the parts of others to each.
  const std::int64_t gathered = own * (ranks - 1);
  const std::int64_t scattered = traffic.values - own;
  if (traffic.rounds == 2) return {bytes * (scattered + gathered), all};
  const bool gathers =
      op.kind == plan::step::StepOp::Gather || op.kind == plan::step::StepOp::GatherInPlace;
  return {bytes * (gathers ? gathered : scattered), all};
}

std::string name_of(const StepCase& of, const UnitOptions& options) {
  return fmt::format("dp {} cp {} tp {}, stage {}, {} copies, {} passes{}{}{}{}", of.mesh.dp,
                     of.mesh.cp, of.mesh.tp, of.zero, of.copies, of.passes,
                     options.tied ? ", tied" : "", of.reshard ? "" : ", kept gathered",
                     of.bf16 ? ", bf16" : "", options.experts ? fmt::format(", ep {}", of.ep) : "");
}

/// Expects the ranks of a step to send what their programs say.
void expect_bytes_of_program(const StepCase& of, const UnitOptions& options) {
  SCOPED_TRACE(name_of(of, options));
  std::atomic<std::int64_t> sent_bytes = 0;
  std::atomic<std::int64_t> program_bytes = 0;
  comm::run_ranks(of.mesh.ranks(), [&](comm::Communicator& comm) {
    UnitsAlongTp model(options);
    StepRank rank(comm, model, of);
    rank.take();
    std::int64_t mine = 0;
    const plan::RankProgram& program = rank.step().program;
    for (const plan::Op& op : program.ops) {
      const OpBytes bytes = bytes_of_op(rank.step(), op, of.bf16 ? 2 : 4);
      mine += bytes.mine;
      const bool is_joint = bytes.all > 0;
      // Each group counts its op once.
      if (is_joint && program.groups[static_cast<std::size_t>(op.peer)].front() == comm.rank()) {
        program_bytes += bytes.all;
      }
    }
    EXPECT_EQ(rank.sent_bytes(), mine) << name_of(of, options) << ", rank " << comm.rank();
    sent_bytes += rank.sent_bytes();
  });
  EXPECT_GT(sent_bytes.load(), 0);
  EXPECT_EQ(sent_bytes.load(), program_bytes.load());
}

/// Steps of every stage with experts: ep of every kind of axis, whole or cut.
std::vector<StepCase> expert_cases() {
  std::vector<StepCase> all;
  for (int zero = 0; zero <= 3; ++zero) {
    const auto add = [&](const MeshShape& mesh, int ep, int copies = 1) {
      all.push_back({.mesh = mesh, .copies = copies, .zero = zero, .passes = 2, .ep = ep});
    };
    add({.cp = 2}, 1);
    add({.tp = 2}, 1);
    add({.cp = 2}, 2);
    add({.tp = 2}, 2);
    add({.tp = 4}, 2);
    add({.cp = 4}, 2);
    add({.cp = 2, .tp = 2}, 1);
    add({.cp = 2, .tp = 2}, 4);
    add({.dp = 2, .cp = 2, .tp = 2}, 2);
    add({.dp = 2, .cp = 2, .tp = 2}, 4);
    add({.dp = 4}, 2, 2);
    add({.dp = 4, .tp = 2}, 2, 2);
  }
  return all;
}

std::vector<StepCase> group_cases() {
  std::vector<StepCase> all;
  for (int zero = 0; zero <= 3; ++zero) {
    for (const bool reshard : {true, false}) {
      if (!reshard && zero < 3) continue;
      const auto add = [&](const MeshShape& mesh, int copies, int passes) {
        all.push_back(
            {.mesh = mesh, .copies = copies, .zero = zero, .passes = passes, .reshard = reshard});
      };
      add({.dp = 3}, 1, 1);
      add({.dp = 3}, 1, 3);
      add({.dp = 2}, 2, 2);
      add({.dp = 4}, 2, 2);
      add({.dp = 2, .cp = 3}, 1, 2);
      add({.tp = 4}, 1, 2);
      add({.cp = 2, .tp = 2}, 1, 2);
      add({.dp = 4, .tp = 4}, 2, 2);
      all.push_back({.mesh = {.dp = 3}, .zero = zero, .reshard = reshard, .bf16 = true});
    }
  }
  return all;
}

TEST(StepRunner, SendsTheBytesOfItsProgram) {
  for (const StepCase& of : group_cases()) {
    for (const bool tied : {false, true}) expect_bytes_of_program(of, {.tied = tied});
  }
}

TEST(StepRunner, SendsTheBytesOfItsProgramWithExperts) {
  for (const StepCase& of : expert_cases()) {
    expect_bytes_of_program(of, {.tied = true, .experts = true});
  }
}

/// Expects the gradients of a rank with shares to have the bits of one that has all of them, and
/// those of bf16.
void expect_same_sums(const StepRank& shares, const StepRank& whole) {
  const std::vector<Piece>& pieces = shares.store().pieces();
  const std::vector<Piece>& wholes = whole.store().pieces();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto same = std::ranges::find(wholes, pieces[i].name, &Piece::name);
    ASSERT_NE(same, wholes.end()) << pieces[i].name;
    const model::GlobalRange& range = pieces[i].range;
    at::Tensor part = whole.gradients()[static_cast<std::size_t>(same - wholes.begin())];
    if (!range.size.empty()) {
      part = part.narrow(0, range.begin[0] - same->range.begin[0], range.size[0]);
    }
    EXPECT_TRUE(at::equal(shares.gradients()[i], part)) << pieces[i].name;
    EXPECT_TRUE(at::equal(part, part.to(at::kBFloat16).to(at::kFloat))) << pieces[i].name;
  }
}

/// Sums in bf16 have memory beside gradients: at stage 0 those of two units until they are
/// gathered, at stage 1 those of one.
TEST(StepRunner, RoundedSumsHaveTheSameBitsAtStages0And1) {
  for (const MeshShape& mesh :
       {MeshShape{.dp = 3}, MeshShape{.cp = 2, .tp = 2}, MeshShape{.dp = 2, .cp = 2, .tp = 2}}) {
    for (const bool experts : {false, true}) {
      const StepCase of{.mesh = mesh, .passes = 2, .bf16_sums = true};
      StepCase divided = of;
      divided.zero = 1;
      const UnitOptions options{.tied = true, .experts = experts};
      comm::run_ranks(mesh.ranks(), [&](comm::Communicator& comm) {
        SCOPED_TRACE(name_of(of, options));
        UnitsAlongTp model(options);
        StepRank whole(comm, model, of);
        StepRank shares(comm, model, divided);
        const double norm = whole.take();
        EXPECT_GT(norm, 0);
        EXPECT_EQ(shares.take(), norm);
        expect_same_sums(shares, whole);
      });
    }
  }
}

/// Expects a rank to refuse its program if an op names another group than its own.
void expect_others_refused(StepRank& rank) {
  ProvedStep step = rank.step();
  const plan::step::StepTables& tables = step.tables;
  const int groups = static_cast<int>(tables.axis_sets().size());
  int refused = 0;
  for (plan::Op& op : step.program.ops) {
    if (!plan::step::step_words()[op.kind].joint) continue;
    const int group = op.peer;
    const auto tile = static_cast<std::size_t>(op.views.front().tile);
    const bool is_norm = step.program.tiles[tile].tensor == StepTensor::Norm;
    for (op.peer = 0; op.peer < groups; ++op.peer) {
      const auto axes = tables.axis_sets()[static_cast<std::size_t>(op.peer)];
      // A norm is summed over any of these groups, as its program says.
      const bool is_one =
          axes == tables.replica_axes() || axes == tables.tp_axis() || axes == tables.ep_axes();
      if (op.peer == group || (is_norm && is_one)) continue;
      EXPECT_THROW(rank.runner_of(step), InternalError)
          << "op " << (&op - step.program.ops.data()) << " over " << plan::step::axis_names(axes);
      ++refused;
    }
    op.peer = group;
  }
  EXPECT_GT(refused, 40);
  // The sum of the loss is not left out.
  std::erase_if(step.program.ops, [&](const plan::Op& op) {
    const auto tile = static_cast<std::size_t>(op.views.front().tile);
    return step.program.tiles[tile].tensor == StepTensor::Loss &&
           op.kind == plan::step::StepOp::AllReduce;
  });
  EXPECT_THROW(rank.runner_of(step), InternalError);
  EXPECT_NO_THROW(rank.runner_of(rank.step()));
}

TEST(StepRunner, AnOpThatNamesAnotherGroupIsRefused) {
  for (int zero = 0; zero <= 3; ++zero) {
    for (const bool experts : {false, true}) {
      const StepCase of{
          .mesh = {.dp = 4, .tp = 4}, .copies = 2, .zero = zero, .ep = experts ? 2 : 1};
      const UnitOptions options{.tied = true, .experts = experts};
      comm::run_ranks(of.mesh.ranks(), [&](comm::Communicator& comm) {
        SCOPED_TRACE(name_of(of, options));
        UnitsAlongTp model(options);
        StepRank rank(comm, model, of);
        expect_others_refused(rank);
      });
    }
  }
}

}  // namespace
}  // namespace armillary::train
