// agreement_test.cpp: all ranks are asked for the same attention and run proved programs, or none
// runs. Ranks differ on purpose in options, programs, versions or arrival, and every rank must
// throw the text that names both sides before a tile has moved.
#include "armillary/attention/agreement.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/comm/testing/spin_until.h"
#include "armillary/core/error.h"
#include "armillary/proof/proof_file.h"
#include "armillary/proof/proofs.h"
#include "armillary/proof/testing/changed_programs.h"
#include "armillary/proof/together.h"
#include "armillary/runtime/device.h"
#include "armillary/runtime/group_state.h"
#include "armillary/runtime/program_cache.h"
#include "armillary/runtime/rank.h"
#include "armillary/runtime/testing/watched_communicator.h"

namespace armillary::attention {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kWorld = 3;

/// A sequence length that no other test uses: proofs are kept for the whole process.
std::int64_t fresh_tokens() {
  static std::atomic<std::int64_t> tokens = 16;
  return ++tokens;
}

AttentionOptions causal(std::int64_t tokens, int world = kWorld) {
  return {.mask = plan::causal_mask({world * tokens, world * tokens}, plan::Align::Start),
          .layout = plan::parse_layout("contiguous")};
}

at::Tensor run(comm::Communicator& comm, const AttentionOptions& options, int batch = 1) {
  const std::int64_t tokens = options.mask.q_len() / comm.world();
  const at::Tensor x = at::ones({batch, tokens, 2, 8});
  const CallKind kind = options.return_max_logit ? CallKind::AttentionLse : CallKind::Attention;
  return Attention(comm, options).run(kind, {x, x, x}).out_BLHE;
}

/// The problem of a call with these options.
plan::Problem problem_of(const AttentionOptions& options) {
  return {.world = kWorld,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 8,
          .value_dim = 8,
          .mask = options.mask,
          .layout = options.layout};
}

/// The error of each rank, its kind first, and the number of plan messages that the rank has
/// started, not counting those of `warm_up`.
struct CallEnds {
  std::vector<std::string> texts;
  std::vector<int> tiles;
};
using Body = std::function<void(comm::Communicator&)>;
CallEnds ends_of(
    const Body& body, int world = kWorld, std::optional<std::uint64_t> shuffle_seed = {},
    const Body& warm_up = [](comm::Communicator&) {}) {
  CallEnds ends{std::vector<std::string>(world, "no error"), std::vector<int>(world)};
  const auto rank_body = [&](comm::Communicator& comm) {
    int& tiles = ends.tiles[comm.rank()];
    runtime::WatchedCommunicator watched(
        comm, [&](const comm::Message& m) { tiles += runtime::is_of_a_plan(comm, m); });
    std::string& text = ends.texts[comm.rank()];
    warm_up(watched);
    tiles = 0;
    try {
      body(watched);
    } catch (const PlanError& error) {
      text = std::string("PlanError: ") + error.what();
    } catch (const InvalidArgument& error) {
      text = std::string("InvalidArgument: ") + error.what();
    } catch (const CommError& error) {
      text = std::string("CommError: ") + error.what();
    }
  };
  try {
    comm::run_ranks(world, rank_body, {.timeout_s = 20, .shuffle_seed = shuffle_seed});
  } catch (const CommError&) {  // the group failed, as every rank was told
  }
  return ends;
}

TEST(Agreement, AWrongPlanRunsOnNoRank) {
  AttentionOptions options = causal(fresh_tokens());
  options.programs = proof::changed_programs([](plan::Pass pass, plan::RankProgram& program) {
    if (pass == plan::Pass::Backward && program.rank == 1) program.ops.pop_back();
  });
  for (int time = 0; time < 2; ++time) {  // asking again does not make it right
    const CallEnds ends = ends_of([&](comm::Communicator& comm) { run(comm, options); });
    EXPECT_THAT(ends.texts, Each(StartsWith("PlanError: attention: ring backward: rank ")));
    EXPECT_THAT(ends.texts, Each(ends.texts[0]));
    EXPECT_THAT(ends.tiles, Each(0));
  }
}

// A rank that has the verdict and leaves must not keep the others from hearing it.
TEST(Agreement, EveryRankIsToldThatThePlanIsWrong) {
  for (const int world : {2, 3, 13}) {
    AttentionOptions options = causal(fresh_tokens(), world);
    options.programs = proof::changed_programs([](plan::Pass, plan::RankProgram& program) {
      if (program.rank == 1 && !program.ops.empty()) program.ops.pop_back();
    });
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto shuffle = seed < 10 ? std::nullopt : std::optional(seed);
      const CallEnds ends =
          ends_of([&](comm::Communicator& comm) { run(comm, options); }, world, shuffle);
      ASSERT_THAT(ends.texts, Each(StartsWith("PlanError: attention: ring "))) << world;
      ASSERT_THAT(ends.tiles, Each(0));
    }
  }
}

// Compiled programs are forgotten before their proofs are.
TEST(Agreement, AProgramThatIsCompiledAnewIsTheOneThatWasProved) {
  const AttentionOptions options = causal(fresh_tokens());
  std::vector<AttentionOptions> others;
  others.reserve(runtime::kProblemsKept + 8);
  for (int i = 0; i < runtime::kProblemsKept + 8; ++i) others.push_back(causal(fresh_tokens()));
  std::atomic<bool> later = false;
  AttentionOptions impure =
      options;  // of rank 1: its source makes another program when asked again
  impure.programs = proof::changed_programs([&](plan::Pass, plan::RankProgram& program) {
    if (later) program.slots.push_back({.bytes = 8});
  });
  const CallEnds ends = ends_of([&](comm::Communicator& comm) {
    const AttentionOptions& own = comm.rank() == 1 ? impure : options;
    run(comm, own);
    for (const AttentionOptions& other : others) run(comm, other);
    if (comm.rank() == 1) later = true;
    run(comm, own);
  });
  EXPECT_THAT(
      ends.texts,
      Each("PlanError: attention: ring was proved with other programs than rank 1 has now"));
}

// One rank was built differently and makes other programs, which are exact too. The prover of the
// pass names a rank whose programs are not its own.
TEST(Agreement, NorDoesAProgramThatIsNotTheOneProved) {
  for (const plan::Pass wrong : proof::kPasses) {
    const AttentionOptions options = causal(fresh_tokens());
    AttentionOptions other = options;
    other.programs = proof::changed_programs([&](plan::Pass pass, plan::RankProgram& program) {
      if (pass == wrong) program.slots.push_back({.bytes = 8});
    });
    int matches = 0;  // How often the text names the rank that differs.
    for (int odd = 0; odd < kWorld; ++odd) {
      const CallEnds ends = ends_of(
          [&](comm::Communicator& comm) { run(comm, comm.rank() == odd ? other : options); });
      const std::string text = fmt::format(" would run a {} program of digest ", to_string(wrong));
      EXPECT_THAT(ends.texts, Each(AllOf(StartsWith("PlanError: attention: rank "), HasSubstr(text),
                                         ends.texts[0])));
      EXPECT_THAT(ends.tiles, Each(0));
      matches += ends.texts[0].starts_with(fmt::format("PlanError: attention: rank {} would", odd));
    }
    EXPECT_EQ(matches, kWorld - 1);
  }
}

TEST(Agreement, NorDoOnesThatDoNotFindWhatForwardSaves) {
  AttentionOptions options = causal(fresh_tokens());
  options.programs = proof::changed_programs([](plan::Pass pass, plan::RankProgram& program) {
    if (pass == plan::Pass::Replay && program.rank == 0) {
      std::swap(program.saved[0], program.saved[1]);
    }
  });
  const CallEnds ends = ends_of([&](comm::Communicator& comm) { run(comm, options); });
  EXPECT_THAT(ends.texts,
              Each(HasSubstr("rank 0: backward or replay does not find what forward saves")));
}

/// An option with another value on rank 1, and the two words that the error has.
struct Difference {
  std::string there;
  std::string here;
  std::function<void(AttentionOptions&)> change;
  bool refused = false;  ///< Refused on all ranks even if all are asked for the same.
};

TEST(Agreement, RanksThatAreAskedForDifferentThingsAreToldBoth) {
  const std::vector<Difference> differences{
      {"scale=0.5", "scale=0.25", [](AttentionOptions& o) { o.scale = 0.25; }},
      {"strategy=ring", "strategy=tokenring",
       [](AttentionOptions& o) { o.strategy = "tokenring"; }},
      {"mask=48x48:0-48/0-48/-47..0", "mask=48x48:0-48/0-48/-47..47",
       [](AttentionOptions& o) {
         o.mask = plan::full_mask({48, 48});
       }},
      {"layout=contiguous", "layout=striped:1",
       [](AttentionOptions& o) { o.layout = plan::parse_layout("striped"); }},
      {"wire=accumulator", "wire=input",
       [](AttentionOptions& o) { o.transfer_dtype = plan::TransferDtype::Input; }},
      {"softcap=none", "softcap=20", [](AttentionOptions& o) { o.softcap = 20; }},
      {"dropout=0", "dropout=0.5", [](AttentionOptions& o) { o.dropout.p = 0.5; }},
      {"dropout.seed=0", "dropout.seed=7", [](AttentionOptions& o) { o.dropout.seed = 7; }},
      {"dropout.step=0", "dropout.step=7", [](AttentionOptions& o) { o.dropout.step = 7; }},
      {"sequence=none", "sequence=#0000000000000007", [](AttentionOptions& o) { o.sequence = 7; }},
      {"timeout_s=none", "timeout_s=9", [](AttentionOptions& o) { o.timeout_s = 9; }},
      {"softcap=none", "softcap=0", [](AttentionOptions& o) { o.softcap = 0; }, true},
      {"timeout_s=none", "timeout_s=-1", [](AttentionOptions& o) { o.timeout_s = -1; }, true},
      {"alibi_slopes_H=none", "alibi_slopes_H=#",
       [](AttentionOptions& o) { o.alibi_slopes_H = at::ones({2}); }},
      {"sinks_H=none", "sinks_H=#", [](AttentionOptions& o) { o.sinks_H = at::zeros({2}); }},
      {"call=attention", "call=attention_lse",
       [](AttentionOptions& o) { o.return_max_logit = true; }},
  };
  for (const bool is_repeat : {false, true}) {
    for (const Difference& difference : differences) {
      AttentionOptions options = causal(16);
      options.scale = 0.5;
      AttentionOptions other = options;
      difference.change(other);
      const CallEnds ends = ends_of([&](comm::Communicator& comm) {
        if (is_repeat) {  // every rank has had its own call agreed on before
          run(comm, options);
          if (!difference.refused) run(comm, other);
        }
        run(comm, comm.rank() == 1 ? other : options);
      });
      EXPECT_THAT(ends.texts, Each(AllOf(StartsWith("InvalidArgument: attention: rank "),
                                         HasSubstr("was asked for"), HasSubstr(difference.there),
                                         HasSubstr(difference.here))));
      if (!is_repeat) {
        EXPECT_THAT(ends.tiles, Each(0)) << difference.here;
      }
    }
  }
}

TEST(Agreement, RanksOfDifferentVersionsAttendToNothing) {
  const AttentionOptions options = causal(fresh_tokens());
  const CallEnds ends = ends_of([&](comm::Communicator& comm) {
    Agreement agreement(comm, {.call = "attention",
                               .key = {},
                               .problem = "world=3",
                               .options = options,
                               .version = comm.rank() == 2 ? "0.0.9" : proof::version()});
    agreement.wait();
  });
  EXPECT_THAT(ends.texts, Each(AllOf(HasSubstr("version=0.0.9"),
                                     HasSubstr("version=" + std::string(proof::version())))));
}

// All ranks have seen both calls before, and ranks far from the one that differs could run.
TEST(Agreement, NoRankAttendsBeforeItKnowsThatAllWereAskedForTheSame) {
  constexpr int kMany = 8;
  AttentionOptions options = causal(fresh_tokens(), kMany);
  options.mask = plan::window_mask({options.mask.q_len(), options.mask.q_len()},
                                   {.left = 3, .right = 0}, plan::Align::Start);
  AttentionOptions other = options;
  other.scale = 0.25;
  const auto both = [&](comm::Communicator& comm) {
    run(comm, options);
    run(comm, other);
  };
  const auto either = [&](comm::Communicator& comm) {
    const int rank = comm.rank();
    if (rank == 5 || rank == 6) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    run(comm, rank == 5 ? other : options);
  };
  const CallEnds ends = ends_of(either, kMany, {}, both);
  EXPECT_THAT(ends.texts, Each(HasSubstr("was asked for scale=")));
  EXPECT_THAT(ends.tiles, Each(0));
}

// An error of one rank may come from ranks that were asked for different things.
TEST(Agreement, AnInputThatDoesNotFitAnothersMaskIsToldAsSuch) {
  const AttentionOptions options = causal(fresh_tokens());
  const AttentionOptions longer = causal(2 * options.mask.q_len());
  AttentionOptions unknown = options;
  unknown.strategy = "rings";
  for (const AttentionOptions& other : {longer, unknown}) {
    const CallEnds ends = ends_of([&](comm::Communicator& comm) {
      const at::Tensor x = at::ones({1, options.mask.q_len() / kWorld, 2, 8});
      sequence_parallel_attention(x, x, x, comm, comm.rank() == 1 ? other : options);
    });
    EXPECT_THAT(
        ends.texts,
        Each(testing::ContainsRegex(
            "rank [0-2] was asked for (mask|strategy)=.*, rank [0-2] for (mask|strategy)=")));
    EXPECT_THAT(ends.tiles, Each(0));
  }
}

// Calls seen before and new ones; also ranks that exchange no tile with the one that refuses.
TEST(Agreement, WhatOneRankRefusesNoRankBegins) {
  constexpr int kMany = 5;
  AttentionOptions options = causal(fresh_tokens(), kMany);
  options.strategy = "allgather";
  const std::int64_t tokens = options.mask.q_len() / kMany;
  for (const bool is_repeat : {false, true}) {
    const auto one_refuses = [&](comm::Communicator& comm) {
      const at::Tensor x = at::ones({1, tokens + (comm.rank() == 3 ? 1 : 0), 2, 8});
      sequence_parallel_attention(x, x, x, comm, options);
    };
    const auto warm_up = [&](comm::Communicator& comm) {
      if (is_repeat) run(comm, options);
    };
    const CallEnds ends = ends_of(one_refuses, kMany, {}, warm_up);
    EXPECT_THAT(ends.texts, Each(StartsWith("InvalidArgument: attention: k has ")));
    EXPECT_THAT(ends.texts, Each(HasSubstr(" on rank 3 of 5; layout ")));
    EXPECT_THAT(ends.tiles, Each(0));
  }
}

// A rank that refuses its call waits to hear the calls of the others.
TEST(Agreement, ALateRankIsComparedToo) {
  const AttentionOptions options = causal(fresh_tokens());
  const AttentionOptions longer = causal(2 * options.mask.q_len());
  const CallEnds ends = ends_of([&](comm::Communicator& comm) {
    if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    const at::Tensor x = at::ones({1, options.mask.q_len() / kWorld, 2, 8});
    sequence_parallel_attention(x, x, x, comm, comm.rank() == 1 ? longer : options);
  });
  EXPECT_THAT(ends.texts, Each(HasSubstr(" was asked for mask=")));
}

/// The CPU, on which every op takes 200 ms longer; knows when it was asked for the first.
class SlowDevice : public runtime::Device {
 public:
  using Clock = std::chrono::steady_clock;
  at::Device place() const override { return at::kCPU; }
  runtime::EventHandle start(plan::Lane /*lane*/, runtime::Work& work, int op) override {
    if (!began) began = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    work.run(op);
    return nullptr;
  }
  void drain(const runtime::Work& /*work*/) noexcept override {}

  std::optional<Clock::time_point> began;

 private:
  bool is_done(const runtime::Event& /*event*/) override { return true; }
  bool wait_for(const runtime::Event& /*event*/, double /*seconds*/) override { return true; }
};

/// Whether no rank computes before rank 1, which is 20 ms late, has come to a call.
bool is_waited_for() {
  AttentionOptions options = causal(fresh_tokens(), 2);
  SlowDevice::Clock::time_point came;
  std::atomic<int> waited = 0;
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    const auto device = std::make_shared<SlowDevice>();
    runtime::Rank::of(comm).use(device);
    run(comm, options);
    device->began.reset();
    comm::barrier(comm);
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      came = SlowDevice::Clock::now();
    }
    run(comm, options);
    comm::barrier(comm);
    if (*device->began >= came) ++waited;
    runtime::Rank::of(comm).use(nullptr);
  });
  return waited == 2;
}

// Rank 0 waits for 100 ms, half of its first op. A busy machine may delay rank 1 for longer, though
// not each time.
TEST(Agreement, ARankThatIsALittleLateIsWaitedFor) {
  int tries = 1;
  while (tries < 5 && !is_waited_for()) ++tries;
  EXPECT_LT(tries, 5);
}

// Its wait ends without them; they hear the reason all the same.
TEST(Agreement, WhoComesLateHearsWhyTheCallWasRefused) {
  const AttentionOptions options = causal(fresh_tokens());
  const std::int64_t tokens = options.mask.q_len() / kWorld;
  std::atomic<bool> refused = false;
  const CallEnds ends = ends_of([&](comm::Communicator& comm) {
    const at::Tensor x = at::ones({1, tokens + (comm.rank() == 1 ? 1 : 0), 2, 8});
    if (comm.rank() == 0) {
      comm::spin_until(refused);
      sequence_parallel_attention(x, x, x, comm, options);
      return;
    }
    if (comm.rank() == 1) comm.set_timeout(0.1);
    try {
      sequence_parallel_attention(x, x, x, comm, options);
    } catch (const InvalidArgument&) {
      refused = true;
      throw;
    }
  });
  const std::string reason = "attention: k has ";
  EXPECT_THAT(ends.texts[1], StartsWith("InvalidArgument: " + reason));
  for (const int peer : {0, 2}) {
    EXPECT_THAT(ends.texts[peer], StartsWith("CommError: rank 1 failed: " + reason));
  }
  EXPECT_THAT(ends.tiles, Each(0));
}

// Replays check the agreement when they begin, ranks in different exchanges of it.
TEST(Agreement, HasALaneOfItsOwn) {
  constexpr int kMany = 8;
  const AttentionOptions options = causal(fresh_tokens(), kMany);
  const CallEnds ends = ends_of(
      [&](comm::Communicator& comm) {
        const at::Tensor x = at::ones({1, options.mask.q_len() / kMany, 2, 8});
        const KeptAttention kept_output =
            Attention(comm, options).run(CallKind::Keep, {x, x, x}).kept_output;
        std::array<std::byte, std::size_t{kMany} * 8> all{};
        const std::span mine = std::span(all).first(8);
        for (int i = 0; i < 200; ++i) {
          auto call = Attention(comm, options)
                          .begin(CallKind::Replay, attention_shape_of(x, x, x), kept_output);
          comm::all_gather(comm, std::vector<std::byte>(mine.begin(), mine.end()), all);
          call.finish(x, x, x);
        }
      },
      kMany);
  EXPECT_THAT(ends.texts, Each("no error"));
}

// A replay begins to run before it is fed, so it has more to undo when it is refused.
TEST(Agreement, ReplaysOfDifferentThingsAreToldBothToo) {
  const AttentionOptions options = causal(fresh_tokens());
  AttentionOptions other = options;
  other.scale = 0.25;
  const CallEnds ends = ends_of([&](comm::Communicator& comm) {
    const at::Tensor x = at::ones({1, options.mask.q_len() / kWorld, 2, 8});
    const AttentionResults first = Attention(comm, options).run(CallKind::Keep, {x, x, x});
    Attention(comm, comm.rank() == 1 ? other : options)
        .run(CallKind::Replay, {x, x, x}, first.kept_output);
  });
  EXPECT_THAT(ends.texts, Each(AllOf(HasSubstr("was asked for scale="), HasSubstr("scale=0.25"))));
}

TEST(Agreement, SinksOfAnotherDtypeAreOthers) {
  AttentionOptions options = causal(fresh_tokens());
  options.sinks_H = at::ones({2}, at::kHalf);
  AttentionOptions other = options;
  other.sinks_H = options.sinks_H.view(at::kShort).view(at::kBFloat16);  // the same bytes
  const CallEnds ends =
      ends_of([&](comm::Communicator& comm) { run(comm, comm.rank() == 1 ? other : options); });
  EXPECT_THAT(ends.texts, Each(HasSubstr("was asked for sinks_H=#")));
}

TEST(Agreement, SinksOfAnotherDtypeAreOthersOnAnyDevice) {
  AttentionOptions options = causal(fresh_tokens());
  options.sinks_H = at::empty({2}, at::device(at::kMeta).dtype(at::kHalf));
  AttentionOptions other = options;
  other.sinks_H = at::empty({2}, at::device(at::kMeta).dtype(at::kBFloat16));
  const CallEnds ends =
      ends_of([&](comm::Communicator& comm) { run(comm, comm.rank() == 1 ? other : options); });
  EXPECT_THAT(ends.texts, Each(HasSubstr("was asked for sinks_H=#")));
}

TEST(Agreement, BatchesThatDifferAreToldToo) {
  const AttentionOptions options = causal(fresh_tokens());
  const CallEnds ends =
      ends_of([&](comm::Communicator& comm) { run(comm, options, comm.rank() == 0 ? 2 : 1); });
  EXPECT_THAT(ends.texts, Each(AllOf(HasSubstr("batch=2"), HasSubstr("batch=1"))));
  EXPECT_THAT(ends.tiles, Each(0));
}

TEST(Agreement, MasksThatDifferFarBehindAreToldApart) {
  std::vector<std::int64_t> lengths(40, 6);
  AttentionOptions options = causal(80);
  options.mask = plan::documents_mask({240, 240}, lengths);
  AttentionOptions other = options;
  lengths[38] = 5;
  lengths[39] = 7;
  other.mask = plan::documents_mask({240, 240}, lengths);
  const CallEnds ends =
      ends_of([&](comm::Communicator& comm) { run(comm, comm.rank() == 1 ? other : options); });
  EXPECT_THAT(ends.texts, Each(HasSubstr("was asked for problem=#")));
}

TEST(Agreement, EveryPassIsProvedOnce) {
  const AttentionOptions options = causal(fresh_tokens());
  const std::int64_t before = proof::Proofs::count();
  for (int group = 0; group < 2; ++group) {
    const CallEnds ends = ends_of([&](comm::Communicator& comm) {
      for (int layer = 0; layer < 3; ++layer) run(comm, options);
    });
    EXPECT_THAT(ends.texts, Each("no error"));
  }
  EXPECT_EQ(proof::Proofs::count() - before, 3);
}

TEST(Agreement, WhatWasProvedAheadIsNotProvedAgain) {
  const AttentionOptions options = causal(fresh_tokens());
  const plan::Problem problem = problem_of(options);
  const std::int64_t before = proof::Proofs::count();
  const CallEnds ends = ends_of([&](comm::Communicator& comm) {
    runtime::prove_ahead(comm, problem, plan::parse_strategy("ring"));
    run(comm, options);
  });
  EXPECT_THAT(ends.texts, Each("no error"));
  EXPECT_EQ(proof::Proofs::count() - before, 3);
}

TEST(Agreement, RecordedProofsNeedNoOther) {
  const std::string folder = (std::filesystem::temp_directory_path() /
                              ("armillary_agreement_" + std::to_string(::getpid())))
                                 .string();
  AttentionOptions options = causal(fresh_tokens());
  options.proofs = folder;
  const plan::Problem problem = problem_of(options);
  const std::string path = proof::save_proof(folder, problem, plan::parse_strategy("ring"));
  const std::int64_t before = proof::Proofs::count();
  const auto ask = [&](comm::Communicator& comm) { run(comm, options); };
  EXPECT_THAT(ends_of(ask).texts, Each("no error"));
  EXPECT_EQ(proof::Proofs::count(), before);

  std::ofstream(path) << "{";
  const CallEnds ends = ends_of(ask);
  EXPECT_THAT(ends.texts, Each(AllOf(StartsWith("InvalidArgument: "), HasSubstr(path),
                                     HasSubstr("is cut off, or is no JSON"))));
  EXPECT_THAT(ends.tiles, Each(0));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace armillary::attention
