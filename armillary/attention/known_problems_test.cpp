// known_problems_test.cpp: what a process and its groups know of problems, with more problems and
// groups than are remembered. The process forgets programs with their proofs after 128 problems; a
// group remembers 1,024 that it has proved.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/attention/testing/small_calls.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/proof/proofs.h"
#include "armillary/runtime/group_state.h"
#include "armillary/runtime/program_cache.h"
#include "armillary/runtime/rank.h"

namespace armillary::attention {
namespace {

constexpr int kMoreThanPrograms = runtime::kProblemsKept + 8;
constexpr std::int64_t kTokens = 100;

/// Options of the i-th problem, which no other test has.
AttentionOptions options_of(int i) {
  AttentionOptions options = causal_options("ring");
  options.mask = plan::window_mask({kTokens, kTokens}, {.left = 3 + i / 40, .right = i % 40},
                                   plan::Align::Start);
  options.layout = plan::parse_layout("striped");
  return options;
}

/// Output and gradients of one call.
std::vector<at::Tensor> attended(comm::Communicator& comm, const AttentionOptions& options) {
  const Leaves x(comm, options, at::kFloat);
  const at::Tensor out = sequence_parallel_attention(x.q, x.k, x.v, comm, options);
  out.backward(out.detach());
  return {out.detach(), x.q.grad(), x.k.grad(), x.v.grad()};
}

void expect_same(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& required,
                 const std::string& where) {
  ASSERT_EQ(actual.size(), required.size());
  for (std::size_t i = 0; i < actual.size(); ++i) expect_same_bits(actual[i], required[i], where);
}

void forget_programs(comm::Communicator& comm, int first) {
  const at::NoGradGuard no_grad;
  for (int i = first; i < first + kMoreThanPrograms; ++i) {
    const AttentionOptions options = options_of(i);
    const Leaves x(comm, options, at::kFloat);
    sequence_parallel_attention(x.q, x.k, x.v, comm, options);
  }
}

/// The proofs that this process has begun, once the worker has begun all that it was asked for.
std::int64_t proofs_made() {
  std::promise<void> begun;
  const auto signal = std::make_shared<proof::Proofs>([&](plan::Pass) {
    begun.set_value();
    return proof::PassProof();
  });
  signal->start(plan::Pass::Forward);
  begun.get_future().wait();
  signal->get(plan::Pass::Forward);
  return proof::Proofs::count();
}

// Four groups of two ranks, in which every rank has two; each asks for more problems than the
// process has programs for, twice.
TEST(KnownProblems, OfManyGroupsAreProvedOnceInEach) {
  std::int64_t first = 0;
  std::int64_t second = 0;
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    const auto row = comm.split(comm.rank() / 2, 0);
    const auto column = comm.split(comm.rank() % 2, 0);
    const at::NoGradGuard no_grad;  // the proof is of all passes
    std::vector<at::Tensor> required;
    for (int time = 0; time < 2; ++time) {
      for (int i = 0; i < kMoreThanPrograms; ++i) {
        // The groups of a rank ask in different orders.
        for (const auto& [group, problem] :
             {std::pair(row.get(), i), std::pair(column.get(), kMoreThanPrograms - 1 - i)}) {
          const AttentionOptions options = options_of(problem);
          const Leaves x(*group, options, at::kFloat);
          const at::Tensor out = sequence_parallel_attention(x.q, x.k, x.v, *group, options);
          if (group != row.get()) continue;
          if (time == 0) {
            required.push_back(out);
          } else {
            expect_same_bits(out, required[i], "problem " + std::to_string(problem));
          }
        }
      }
      comm::barrier(comm);
      if (comm.rank() == 0) (time == 0 ? first : second) = proof::Proofs::count();
      comm::barrier(comm);
    }
  });
  EXPECT_EQ(second, first) << "a group has forgotten what it had proved";
}

// Rank 0 has proved in another group what rank 1 has never seen, and the other way round: a group
// counts what it has proved itself.
TEST(KnownProblems, OfOtherGroupsCountForNothing) {
  for (const bool forgets : {false, true}) {
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const int rank = comm.rank();
      const auto outer = comm.split(rank == 0 || rank == 3 ? 0 : 1, 0);  // {0, 3}, {1, 2}
      const auto inner = comm.split(rank / 2, 0);                        // {0, 1}, {2, 3}
      const int known = rank == 0 || rank == 3 ? 700 : 701;
      const std::vector<at::Tensor> required = attended(*outer, options_of(known));
      if (forgets) forget_programs(*outer, 710);
      for (const int problem : {700, 701}) {
        const std::vector<at::Tensor> actual = attended(*inner, options_of(problem));
        // The same place in a group of two.
        if (problem == known && inner->rank() == outer->rank()) {
          expect_same(actual, required, "rank " + std::to_string(rank));
        }
      }
    });
  }
}

// The programs of a call that is in progress are its own.
TEST(KnownProblems, MayBeForgottenWhileACallIsInProgress) {
  comm::run_ranks(2, [](comm::Communicator& comm) {
    const AttentionOptions options = options_of(1300);
    const std::vector<at::Tensor> required = attended(comm, options);
    const auto other = comm.split(0, 0);
    const Leaves x(comm, options, at::kFloat);
    AttentionInProgress call =
        Attention(comm, options).begin(CallKind::Attention, attention_shape_of(x.q, x.k, x.v));
    call.feed_k(x.k);
    forget_programs(*other, 1310);
    call.feed_v(x.v);
    const at::Tensor out = call.finish(x.q, x.k, x.v).out_BLHE;
    forget_programs(*other, 1310);
    out.backward(out.detach());
    expect_same({out.detach(), x.q.grad(), x.k.grad(), x.v.grad()}, required, "in progress");
  });
}

// A group does not need the proof of what it has proved, whoever has forgotten the programs.
TEST(KnownProblems, AreNotProvedAheadAgain) {
  std::int64_t before = 0;
  const plan::Strategy ring = plan::parse_strategy("ring");
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    const AttentionOptions options = options_of(1900);
    const plan::Problem problem{.world = 2,
                                .batch = 2,
                                .heads = 4,
                                .kv_heads = 4,
                                .head_dim = 8,
                                .value_dim = 16,
                                .mask = options.mask,
                                .layout = options.layout};
    attended(comm, options);
    ASSERT_TRUE(runtime::Rank::of(comm).group(comm).known.has_proved(problem, "ring"));
    forget_programs(comm, 1910);
    comm::barrier(comm);
    if (comm.rank() == 0) before = proofs_made();
    comm::barrier(comm);
    runtime::prove_ahead(comm, problem, ring);
    // One that is new is proved ahead, by one rank even: it changes nothing that ranks agree on.
    AttentionOptions fresh = options_of(2500);
    plan::Problem next = problem;
    next.mask = fresh.mask;
    if (comm.rank() == 0) runtime::prove_ahead(comm, next, ring);
    attended(comm, fresh);
    attended(comm, options);
  });
  // Three passes of the new one, and the signal of proofs_made().
  EXPECT_EQ(proofs_made() - before, 3 + 1);
}

}  // namespace
}  // namespace armillary::attention
