// executor_test.cpp: one rank's program run over thread ranks: bytes equal to the plan's, borrowed
// slots, the same bits under any timing and in every run, and errors that reach all ranks.
#include "armillary/runtime/executor.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/kernel/reference.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/plan/testing/every_strategy.h"
#include "armillary/runtime/program_cache.h"

namespace armillary::runtime {
namespace {

using plan::Pass;
using plan::Tensor;

CompiledAttention compiled_for(const plan::Problem& problem, const plan::Strategy& strategy,
                               plan::Rank rank,
                               const kernel::Kernel& kernel = kernel::cpu_kernel()) {
  return *compile_cached(problem, strategy, rank, kernel);
}

ExecutionOptions options() {
  return {.score = {0.35}};
}

/// Random values in the shape of the program's tile of `tensor`.
at::Tensor random_tile(const CompiledProgram& compiled, Tensor tensor, std::uint64_t seed) {
  for (std::size_t t = 0; t < compiled.program.tiles.size(); ++t) {
    if (compiled.program.tiles[t].tensor != tensor || compiled.program.tiles[t].partial) continue;
    at::Generator generator = at::detail::createCPUGenerator(seed + compiled.program.rank);
    return at::randn(compiled.shapes[t], generator);
  }
  throw std::logic_error("no such tile");
}

Execution run_forward(const CompiledAttention& programs, comm::Communicator& comm) {
  Execution run(programs.forward, comm, options());
  for (const Tensor tensor : {Tensor::K, Tensor::V, Tensor::Q}) {
    run.feed(tensor,
             random_tile(*programs.forward, tensor, std::uint64_t{7} * static_cast<int>(tensor)));
  }
  run.finish();
  return run;
}

Execution run_backward(const CompiledAttention& programs, const Execution& forward,
                       comm::Communicator& comm) {
  Execution run(programs.backward, comm, options());
  for (const Tensor tensor : {Tensor::Q, Tensor::K, Tensor::V, Tensor::Out, Tensor::Lse}) {
    run.feed(tensor, forward.saved(tensor));
  }
  run.feed(Tensor::DOut, random_tile(*programs.backward, Tensor::DOut, 99));
  run.finish();
  return run;
}

TEST(Execution, MovesExactlyTheBytesOfItsPlan) {
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    const plan::Problem problem = plan::causal_problem(world, 45);
    for (const std::string& name : plan::every_strategy(problem)) {
      const plan::Strategy strategy = plan::parse_strategy(name);
      const plan::Planner planner(problem, strategy);
      comm::run_ranks(world, [&](comm::Communicator& comm) {
        const CompiledAttention programs = compiled_for(problem, strategy, comm.rank());
        const Execution forward = run_forward(programs, comm);
        const Execution backward = run_backward(programs, forward, comm);
        for (const auto& [pass, moved] : {std::pair(Pass::Forward, forward.moved()),
                                          std::pair(Pass::Backward, backward.moved())}) {
          const plan::Traffic planned =
              plan::traffic(problem, planner.blocks(), planner.program(pass, comm.rank()));
          EXPECT_EQ(moved.sent_bytes, planned.sent_bytes) << name << " rank " << comm.rank();
          EXPECT_EQ(moved.received_bytes, planned.received_bytes)
              << name << " rank " << comm.rank();
        }
      });
    }
  }
}

/// Bytes received in a forward and a backward pass, and the part of them that was not copied.
struct BorrowedBytes {
  std::int64_t received = 0;
  std::int64_t borrowed = 0;
};

std::array<BorrowedBytes, 2> borrowed_by(const plan::Problem& problem,
                                         const std::string& strategy) {
  std::array<BorrowedBytes, 2> sums;
  std::mutex mutex;
  comm::run_ranks(problem.world, [&](comm::Communicator& comm) {
    const CompiledAttention programs =
        compiled_for(problem, plan::parse_strategy(strategy), comm.rank());
    const Execution forward = run_forward(programs, comm);
    const Execution backward = run_backward(programs, forward, comm);
    const std::lock_guard lock(mutex);
    for (const auto& [sum, run] : {std::pair(&sums[0], &forward), std::pair(&sums[1], &backward)}) {
      sum->received += run->moved().received_bytes;
      sum->borrowed += run->moved().borrowed_bytes;
    }
  });
  return sums;
}

TEST(Execution, BorrowsWhatNobodyWritesOverBeforeTheEnd) {
  plan::Problem problem = plan::causal_problem(2, 64);
  problem.mask = plan::parse_mask("full", {64, 64});
  for (const std::string strategy : {"ring", "tokenring", "allgather"}) {
    const BorrowedBytes forward = borrowed_by(problem, strategy)[0];
    EXPECT_GT(forward.received, 0) << strategy;
    EXPECT_EQ(forward.borrowed, forward.received) << strategy;
  }
  EXPECT_GT(borrowed_by(problem, "ring")[1].borrowed, 0);
}

// The first hop sends the caller's K and V, the third a slot that is not used again: both need no
// copy. The second passes on a borrowed tile, and copies it.
TEST(Execution, BorrowsTwoOfThreeHopsOfARing) {
  plan::Problem problem = plan::causal_problem(4, 64);
  problem.mask = plan::parse_mask("full", {64, 64});
  const BorrowedBytes forward = borrowed_by(problem, "ring")[0];
  EXPECT_EQ(3 * forward.borrowed, 2 * forward.received);
}

// No op waits for the second hop, but its tile is borrowed, so it is copied.
TEST(Execution, LendsNothingThatItBorrows) {
  plan::Problem problem = plan::causal_problem(3, 48);
  problem.mask = plan::parse_mask("full", {48, 48});
  const BorrowedBytes forward = borrowed_by(problem, "ring")[0];
  EXPECT_GT(forward.received, 0);
  EXPECT_EQ(2 * forward.borrowed, forward.received);
}

// A tile that was given back may be borrowed again.
TEST(Execution, BorrowsAsMuchInEveryRun) {
  plan::Problem problem = plan::causal_problem(3, 48);
  problem.mask = plan::parse_mask("full", {48, 48});
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    const CompiledAttention programs =
        compiled_for(problem, plan::parse_strategy("ring"), comm.rank());
    Execution run(programs.forward, comm, options());
    std::vector<std::int64_t> borrowed;
    for (int i = 0; i < 3; ++i) {
      if (i > 0) run.restart(comm, options());
      for (const Tensor tensor : {Tensor::K, Tensor::V, Tensor::Q}) {
        run.feed(tensor, random_tile(*programs.forward, tensor, i));
      }
      run.finish();
      borrowed.push_back(run.moved().borrowed_bytes);
    }
    EXPECT_GT(borrowed[0], 0) << "rank " << comm.rank();
    EXPECT_EQ(borrowed[1], borrowed[0]) << "rank " << comm.rank();
    EXPECT_EQ(borrowed[2], borrowed[0]) << "rank " << comm.rank();
  });
}

/// The CPU, on which one op takes 100 ms longer.
class OneSlowOp : public Device {
 public:
  explicit OneSlowOp(int slow) : slow_(slow) {}
  at::Device place() const override { return at::kCPU; }
  EventHandle start(plan::Lane /*lane*/, Work& work, int op) override {
    if (op == slow_) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    work.run(op);
    return nullptr;
  }
  void drain(const Work& /*work*/) noexcept override {}

 private:
  bool is_done(const Event& /*event*/) override { return true; }
  bool wait_for(const Event& /*event*/, double /*seconds*/) override { return true; }

  int slow_;
};

// The next call waits for other ranks in proportion to it (attention/attention_call.cpp). This
// program clears its sums first.
TEST(Execution, RemembersHowLongItsFirstAttentionTook) {
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    const CompiledAttention programs = compiled_for(
        plan::causal_problem(2, 64), plan::parse_strategy("allgather:slices=2"), comm.rank());
    const std::vector<plan::Op>& ops = programs.forward->program.ops;
    const auto first_of = [&](const auto& is) {
      return static_cast<int>(std::ranges::find_if(ops, is) - ops.begin());
    };
    const int clear = first_of([](const plan::Op& op) { return op.kind == plan::OpKind::Clear; });
    const int attend = first_of([](const plan::Op& op) { return attends(op); });
    ASSERT_LT(clear, attend);
    OneSlowOp slow_clear(clear);
    OneSlowOp slow_attend(attend);
    Execution run = run_forward(programs, comm);
    EXPECT_GT(run.first_attend_s(), 0);
    for (OneSlowOp* const device : {&slow_clear, &slow_attend}) {
      const double before = run.first_attend_s();
      const auto begin = std::chrono::steady_clock::now();
      run.restart(comm, {.score = {0.35}, .device = device});
      EXPECT_EQ(run.first_attend_s(), before);
      for (const Tensor tensor : {Tensor::K, Tensor::V, Tensor::Q}) {
        run.feed(tensor, random_tile(*programs.forward, tensor, 0));
      }
      run.finish();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      // A slow clear takes its 100 ms beside the first attend.
      const bool is_slow = device == &slow_attend;
      EXPECT_GE(is_slow ? run.first_attend_s() : took.count() - run.first_attend_s(), 0.1);
    }
  });
}

TEST(Execution, SameBitsWhateverTheTiming) {
  const plan::Problem problem = plan::causal_problem(4, 37);
  for (const std::string& name : plan::every_strategy(problem)) {
    std::vector<std::vector<at::Tensor>> results;
    for (const std::optional<std::uint64_t> seed :
         {std::optional<std::uint64_t>{}, {1}, {2}, {3}}) {
      std::vector<at::Tensor> all(16);
      comm::run_ranks(4,
                      [&](comm::Communicator& comm) {
                        const CompiledAttention programs =
                            compiled_for(problem, plan::parse_strategy(name), comm.rank());
                        const Execution forward = run_forward(programs, comm);
                        const Execution backward = run_backward(programs, forward, comm);
                        all[std::size_t{4} * comm.rank()] = forward.output(Tensor::Out);
                        all[comm.rank() * 4 + 1] = backward.output(Tensor::DQ);
                        all[comm.rank() * 4 + 2] = backward.output(Tensor::DK);
                        all[comm.rank() * 4 + 3] = backward.output(Tensor::DV);
                      },
                      {.shuffle_seed = seed});
      results.push_back(all);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      for (std::size_t r = 1; r < results.size(); ++r) {
        EXPECT_TRUE(at::equal(results[0][i], results[r][i]))
            << name << " tensor " << i << " run " << r;
      }
    }
  }
}

// Slots and bound tensors are the same in every run; results of two runs never share memory.
TEST(Execution, RunsAgainWithTheSameBitsAndLeavesResultsAlone) {
  const plan::Problem problem = plan::causal_problem(4, 37);
  for (const std::string& name : plan::every_strategy(problem)) {
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const CompiledAttention programs =
          compiled_for(problem, plan::parse_strategy(name), comm.rank());
      Execution run(programs.forward, comm, options());
      std::vector<std::vector<at::Tensor>> results;
      std::vector<at::Tensor> copies;
      for (const int factor : {1, 2, 1}) {
        if (!results.empty()) run.restart(comm, options());
        for (const Tensor tensor : {Tensor::K, Tensor::V, Tensor::Q}) {
          const at::Tensor x = random_tile(*programs.forward, tensor, static_cast<int>(tensor));
          run.feed(tensor, x * factor);
        }
        run.finish();
        results.push_back(
            {run.output(Tensor::Out), run.saved(Tensor::Out), run.saved(Tensor::Lse)});
        if (copies.empty()) {
          for (const at::Tensor& result : results[0]) copies.push_back(result.clone());
        }
      }
      for (std::size_t i = 0; i < copies.size(); ++i) {
        EXPECT_TRUE(at::equal(results[0][i], copies[i])) << name << " result " << i;
        EXPECT_TRUE(at::equal(results[2][i], copies[i])) << name << " result " << i;
        EXPECT_FALSE(results[1][i].numel() > 0 && at::equal(results[1][i], copies[i])) << name;
      }
    });
  }
}

TEST(Execution, RememberedLogitsAreThoseOfARunThatAskedForThem) {
  const plan::Problem problem = plan::causal_problem(1, 8);
  comm::run_ranks(1, [&](comm::Communicator& comm) {
    const CompiledAttention programs = compiled_for(problem, {.name = "ring"}, 0);
    ExecutionOptions settings = options();
    settings.max_logit = true;
    Execution run(programs.forward, comm, settings);
    EXPECT_TRUE(run.max_logit().defined());
    run.restart(comm, options());
    EXPECT_FALSE(run.max_logit().defined());
  });
}

// Q, K and V are views of one packed projection: the run reads their strides right.
TEST(Execution, TakesViewsOfAPackedProjection) {
  plan::Problem problem = plan::causal_problem(2, 24);
  problem.kv_heads = problem.heads;
  for (const std::string& name : plan::every_strategy(problem)) {
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      const CompiledAttention programs =
          compiled_for(problem, plan::parse_strategy(name), comm.rank());
      std::vector<at::Tensor> qkv;
      for (const Tensor tensor : {Tensor::Q, Tensor::K, Tensor::V}) {
        qkv.push_back(random_tile(*programs.forward, tensor, static_cast<int>(tensor)));
      }
      const std::vector<at::Tensor> packed = at::stack(qkv, 2).unbind(2);
      std::vector<at::Tensor> results;
      for (const std::vector<at::Tensor>& tensors : {qkv, packed}) {
        Execution run(programs.forward, comm, options());
        run.feed(Tensor::Q, tensors[0]);
        run.feed(Tensor::K, tensors[1]);
        run.feed(Tensor::V, tensors[2]);
        run.finish();
        results.push_back(run.output(Tensor::Out));
      }
      EXPECT_TRUE(at::equal(results[0], results[1])) << name;
    });
  }
}

TEST(Execution, SendsKeysBeforeQueriesAreThere) {
  const plan::Problem problem = plan::causal_problem(2, 16);
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    const CompiledAttention programs =
        compiled_for(problem, plan::parse_strategy("ring"), comm.rank());
    Execution run(programs.forward, comm, options());
    run.feed(Tensor::K, random_tile(*programs.forward, Tensor::K, 1));
    EXPECT_EQ(run.moved().sent_bytes, 0);
    run.feed(Tensor::V, random_tile(*programs.forward, Tensor::V, 2));
    EXPECT_GT(run.moved().sent_bytes + run.moved().received_bytes, 0);
    run.feed(Tensor::Q, random_tile(*programs.forward, Tensor::Q, 3));
    run.finish();
  });
}

// With sinks `delta` also reads the log-sum-exp, so it must wait for it in any order of inputs.
TEST(Execution, SinksGetTheirGradientInWhateverOrderInputsCome) {
  for (const char* name : {"ring", "ulysses"}) {
    const plan::Problem problem = plan::causal_problem(2, 16);
    comm::run_ranks(2, [&](comm::Communicator& comm) {
      const CompiledAttention programs =
          compiled_for(problem, plan::parse_strategy(name), comm.rank());
      ExecutionOptions with = options();
      with.sinks_H = at::tensor({0.5f, 1.0f, -1.0f, 3.0f});
      const Execution forward = run_forward(programs, comm);
      const auto dsinks = [&](std::initializer_list<Tensor> order) {
        Execution run(programs.backward, comm, with);
        for (const Tensor tensor : order) {
          const bool saved = tensor != Tensor::DOut;
          run.feed(tensor, saved ? forward.saved(tensor)
                                 : random_tile(*programs.backward, Tensor::DOut, 99));
        }
        run.finish();
        return run.sinks_grad();
      };
      using enum plan::Tensor;
      const at::Tensor result = dsinks({DOut, Out, Q, K, V, Lse});
      EXPECT_TRUE(at::equal(result, dsinks({Q, K, V, Out, Lse, DOut}))) << name;
      EXPECT_TRUE(result.isfinite().all().item<bool>()) << result;
      EXPECT_GT(result.abs().max().item<double>(), 0) << name;
    });
  }
}

template <class E>
void expect_error(const std::function<void()>& action, const std::string& part) {
  try {
    action();
  } catch (const E& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
    return;
  }
  ADD_FAILURE() << "no error with '" << part << "'";
}

TEST(Execution, RefusesWhatItDoesNotWaitFor) {
  const plan::Problem problem = plan::causal_problem(1, 16);
  const CompiledAttention programs = compiled_for(problem, plan::parse_strategy("ring"), 0);
  const auto with_run = [&](const std::function<void(Execution&)>& body) {
    comm::run_ranks(1, [&](comm::Communicator& comm) {
      Execution run(programs.forward, comm, options());
      body(run);
    });
  };
  const at::Tensor q = random_tile(*programs.forward, Tensor::Q, 1);
  expect_error<InvalidArgument>(
      [&] { with_run([&](Execution& run) { run.feed(Tensor::Q, q.narrow(1, 0, 9)); }); },
      "q is Float of [2, 9, 4, 8]; rank 0 needs Float of [2, 16, 4, 8]");
  expect_error<InvalidArgument>(
      [&] { with_run([&](Execution& run) { run.feed(Tensor::Q, q.to(at::kDouble)); }); }, "Double");
  expect_error<InvalidArgument>(
      [&] { with_run([&](Execution& run) { run.feed(Tensor::DOut, q); }); },
      "dout was fed; this pass does not wait for it");
  expect_error<InvalidArgument>(
      [&] {
        with_run([&](Execution& run) {
          run.feed(Tensor::Q, q);
          run.feed(Tensor::Q, q);
        });
      },
      "q was fed");
  expect_error<InvalidArgument>(
      [&] { with_run([&](Execution& run) { run.place_output(Tensor::Q, q); }); },
      "memory for q was given; a result of this pass is required, before feed()");
  expect_error<InvalidArgument>(
      [&] { with_run([&](Execution& run) { run.place_output(Tensor::Out, q.transpose(2, 3)); }); },
      "out is Float of [2, 16, 8, 4]");
  const at::Tensor apart = at::empty({2, 16, 4, 16}).narrow(3, 0, 8);
  expect_error<InvalidArgument>(
      [&] { with_run([&](Execution& run) { run.place_output(Tensor::Out, apart); }); },
      "memory for out has strides [1024, 64, 16, 1]; contiguous is required");
  expect_error<InvalidArgument>([&] { with_run([&](Execution& run) { run.finish(); }); },
                                "finish() before k was fed");
  expect_error<InvalidArgument>(
      [&] {
        comm::run_ranks(2, [&](comm::Communicator& comm) {
          const Execution run(programs.forward, comm, options());
        });
      },
      "rank 0 of 1");
}

TEST(Execution, RefusesSinksThatDoNotFit) {
  const CompiledAttention programs =
      compiled_for(plan::causal_problem(1, 16), plan::parse_strategy("ring"), 0);
  for (const at::Tensor& sinks_H : {at::zeros({3}), at::zeros({4}, at::kDouble)}) {
    expect_error<InvalidArgument>(
        [&] {
          comm::run_ranks(1, [&](comm::Communicator& comm) {
            ExecutionOptions with = options();
            with.sinks_H = sinks_H;
            const Execution run(programs.forward, comm, with);
          });
        },
        "; Float [4] is required");
  }
}

TEST(Execution, APeerThatNeverComesEndsInADeadline) {
  const plan::Problem problem = plan::causal_problem(3, 24);
  const auto begin = std::chrono::steady_clock::now();
  expect_error<CommError>(
      [&] {
        comm::run_ranks(
            3,
            [&](comm::Communicator& comm) {
              if (comm.rank() == 1) return;
              run_forward(compiled_for(problem, plan::parse_strategy("ring"), comm.rank()), comm);
            },
            {.timeout_s = 0.2});
      },
      "rank");
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(waited.count(), 30.0);
}

TEST(Execution, PackedQkvTakesOneMessageToEachPeerAndBack) {
  const plan::Problem problem = plan::causal_problem(4, 45);
  const auto expect_messages = [&](const std::string& name, std::int64_t messages) {
    comm::run_ranks(4, [&](comm::Communicator& comm) {
      const CompiledAttention programs =
          compiled_for(problem, plan::parse_strategy(name), comm.rank());
      const MovedCounts moved = run_forward(programs, comm).moved();
      EXPECT_EQ(moved.sent_messages, messages) << name;
      EXPECT_EQ(moved.received_messages, messages) << name;
    });
  };
  expect_messages("ulysses", 12);
  expect_messages("ulysses:qkv=packed", 6);
}

/// A kernel that fails on one rank.
class FailingKernel : public kernel::Kernel {
  void run_attend(const kernel::Pairs&, const kernel::Inputs&, kernel::Partial&) const override {
    throw std::runtime_error("the kernel broke");
  }
  void run_attend_grad(const kernel::Pairs&, const kernel::Inputs&, const kernel::OutputGrads&,
                       kernel::InputGrads&) const override {}
};

TEST(Execution, AFailureOnOneRankEndsAllWithItsReason) {
  const plan::Problem problem = plan::causal_problem(4, 32);
  static const FailingKernel broken;  // static: the cache keeps programs that refer to it
  const auto begin = std::chrono::steady_clock::now();
  expect_error<std::runtime_error>(
      [&] {
        comm::run_ranks(4, [&](comm::Communicator& comm) {
          const kernel::Kernel& kernel = comm.rank() == 2 ? broken : kernel::cpu_kernel();
          const CompiledAttention programs =
              compiled_for(problem, plan::parse_strategy("ring"), comm.rank(), kernel);
          Execution run(programs.forward, comm, options());
          for (const Tensor tensor : {Tensor::K, Tensor::V, Tensor::Q}) {
            run.feed(tensor, random_tile(*programs.forward, tensor, 5));
          }
          run.finish();
        });
      },
      "the kernel broke");
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(waited.count(), 30.0) << "half a timeout";
}

TEST(CompileCached, SharesProgramsOfEqualProblems) {
  const plan::Problem problem = plan::causal_problem(2, 40);
  const plan::Strategy ring = plan::parse_strategy("ring");
  EXPECT_EQ(compiled_for(problem, ring, 1).forward, compiled_for(problem, ring, 1).forward);
  EXPECT_NE(compiled_for(problem, ring, 0).forward, compiled_for(problem, ring, 1).forward);
  EXPECT_NE(compiled_for(plan::causal_problem(2, 41), ring, 1).forward,
            compiled_for(problem, ring, 1).forward);
  EXPECT_NE(compiled_for(problem, ring, 1, kernel::reference()).forward,
            compiled_for(problem, ring, 1).forward);
}

}  // namespace
}  // namespace armillary::runtime
