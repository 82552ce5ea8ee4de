// digest_test.cpp: digests tell apart all that a proof depends on: each field of a problem and each
// part of a program is changed in turn.
#include "armillary/proof/digest.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

namespace armillary::proof {
namespace {

plan::Problem small_problem() {
  return {.world = 2,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 8,
          .mask = plan::causal_mask({16, 16}, plan::Align::Start)};
}

TEST(Digest, TellsTextsApart) {
  EXPECT_EQ(to_string(digest_of("")).size(), 32U);
  EXPECT_EQ(digest_of("ring"), digest_of("ring"));
  EXPECT_NE(digest_of("ring"), digest_of("rinh"));
  EXPECT_EQ(to_string(Digest{.low = 1, .high = 0xa}), "000000000000000a0000000000000001");
}

TEST(Digest, OfAProblemDependsOnAllOfIt) {
  const std::vector<std::function<void(plan::Problem&)>> changes{
      [](plan::Problem&) {},
      [](plan::Problem& p) { p.world = 4; },
      [](plan::Problem& p) { p.batch = 2; },
      [](plan::Problem& p) { p.heads = 4; },
      [](plan::Problem& p) { p.kv_heads = 1; },
      [](plan::Problem& p) { p.head_dim = 16; },
      [](plan::Problem& p) { p.value_dim = 16; },
      [](plan::Problem& p) { p.dtype = plan::Dtype::Bf16; },
      [](plan::Problem& p) {
        p.mask = plan::full_mask({16, 16});
      },
      [](plan::Problem& p) {
        p.mask = plan::causal_mask({16, 17}, plan::Align::Start);
      },
      [](plan::Problem& p) {
        p.mask = plan::causal_mask({16, 17}, plan::Align::End);
      },
      [](plan::Problem& p) { p.layout.kind = plan::LayoutKind::Striped; },
      [](plan::Problem& p) {
        p.layout = {plan::LayoutKind::Striped, 2};
      },
      [](plan::Problem& p) { p.return_lse = true; },
      [](plan::Problem& p) { p.transfer_dtype = plan::TransferDtype::Input; },
  };
  std::set<Digest> digests;
  for (const auto& change : changes) {
    plan::Problem problem = small_problem();
    change(problem);
    digests.insert(digest_of(problem, plan::parse_strategy("ring")));
  }
  digests.insert(digest_of(small_problem(), plan::parse_strategy("tokenring")));
  digests.insert(digest_of(small_problem(), plan::parse_strategy("usp:u=2")));
  digests.insert(digest_of(small_problem(), plan::parse_strategy("usp:u=1")));
  EXPECT_EQ(digests.size(), changes.size() + 3);
}

TEST(Digest, OfAProgramDependsOnAllOfIt) {
  const plan::Planner planner(small_problem(), plan::parse_strategy("ring"));
  const plan::RankProgram program = planner.program(plan::Pass::Forward, 1);
  const Digest blocks = digest_of(planner.blocks());
  using Program = plan::RankProgram;
  const std::vector<std::function<void(Program&)>> changes{
      [](Program&) {},
      [](Program& p) { p.rank = 0; },
      [](Program& p) { p.slots[0].bytes += 1; },
      [](Program& p) { p.slots[0].external = !p.slots[0].external; },
      [](Program& p) { p.tiles[0].tensor = plan::Tensor::DOut; },
      [](Program& p) { p.tiles[0].partial = !p.tiles[0].partial; },
      [](Program& p) { p.tiles[0].heads.end += 1; },
      [](Program& p) { p.tiles[0].blocks.push_back(9); },
      [](Program& p) { p.tiles[0].slot += 1; },
      [](Program& p) { p.tiles[0].narrow = !p.tiles[0].narrow; },
      [](Program& p) { p.ops[0].kind = plan::OpKind::Merge; },
      [](Program& p) { p.ops[0].lane += 1; },
      [](Program& p) { p.ops[0].step += 1; },
      [](Program& p) { p.ops[0].peer += 1; },
      [](Program& p) { p.ops[0].collective = plan::Collective::AllToAll; },
      [](Program& p) { p.ops[0].init[plan::kQSide] = true; },
      [](Program& p) { p.ops[0].init[plan::kKvSide] = true; },
      [](Program& p) { p.ops[0].zero_copy = true; },
      [](Program& p) { p.ops[0].views[0].tile += 1; },
      [](Program& p) { p.ops[0].views[0].heads.begin += 1; },
      [](Program& p) { p.ops[0].views[0].blocks.push_back(9); },
      [](Program& p) { p.ops.pop_back(); },
      [](Program& p) { std::swap(p.ops[0], p.ops[1]); },
      [](Program& p) { p.inputs.pop_back(); },
      [](Program& p) { p.outputs.push_back(p.inputs[0]); },
      [](Program& p) { p.saved.pop_back(); },
      [](Program& p) {
        p.groups.push_back({0, 1});
      },
  };
  std::set<Digest> digests;
  for (const auto& change : changes) {
    plan::RankProgram changed = program;
    change(changed);
    digests.insert(digest_of(changed, blocks));
  }
  EXPECT_EQ(digests.size(), changes.size());
  plan::Blocks others = planner.blocks();
  others.kv[0].runs[0].begin += 1;
  EXPECT_NE(digest_of(others), blocks);
  EXPECT_NE(digest_of(program, digest_of(others)), digest_of(program, blocks));
}

}  // namespace
}  // namespace armillary::proof
