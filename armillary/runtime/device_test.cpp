// device_test.cpp: all memory of a run lies on its device, also if that is not the CPU. The device
// of the tests has shapes without memory, so whatever touches bytes fails.
#include "armillary/runtime/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/cpu_kernel.h"
#include "armillary/plan/testing/causal_problem.h"
#include "armillary/runtime/executor.h"
#include "armillary/runtime/program_cache.h"

namespace armillary::runtime {
namespace {

/// A device whose tensors have shapes but no memory. It runs its ops only if `runs`.
class ShapesOnly : public Device {
 public:
  at::Device place() const override { return at::kMeta; }
  EventHandle start(plan::Lane /*lane*/, Work& work, int op) override {
    if (runs) work.run(op);
    return nullptr;
  }
  void drain(const Work& /*work*/) noexcept override {}
  bool runs = false;

 private:
  bool is_done(const Event& /*event*/) override { return true; }
  bool wait_for(const Event& /*event*/, double /*seconds*/) override { return true; }
};

/// A kernel that checks the place of its tensors and computes nothing.
class Seeing : public kernel::Kernel {
 public:
  bool plain_only() const override { return false; }
  void expect_there(const at::Tensor& tensor) const {
    ++calls;
    EXPECT_TRUE(tensor.is_meta());
    EXPECT_TRUE(
        tensor.unsafeGetTensorImpl()->key_set().has_backend(c10::BackendComponent::MetaBit));
  }
  mutable int calls = 0;

 private:
  void run_attend_all(const kernel::Pairs& /*pairs*/, const kernel::Inputs& inputs,
                      const at::Tensor& sinks_H, kernel::AttentionOutput& result) const override {
    for (const auto& x : {inputs.q_BLHD, inputs.k_BLGD, inputs.v_BLGE, sinks_H, result.out_BLHE,
                          result.lse_BLH, result.max_logit_H}) {
      expect_there(x);
    }
  }
  void run_attend(const kernel::Pairs& /*pairs*/, const kernel::Inputs& /*inputs*/,
                  kernel::Partial& /*carry*/) const override {
    ADD_FAILURE() << "one call has all keys";
  }
  void run_attend_grad(const kernel::Pairs& /*pairs*/, const kernel::Inputs& /*inputs*/,
                       const kernel::OutputGrads& /*upstream*/,
                       kernel::InputGrads& /*grads*/) const override {}
};

std::shared_ptr<const CompiledProgram> alone(const kernel::Kernel& kernel) {
  return compile_cached(plan::causal_problem(1, 8), plan::parse_strategy("ring"), 0, kernel)
      ->forward;
}

TEST(Device, HasAllMemoryOfARun) {
  comm::run_ranks(1, [](comm::Communicator& comm) {
    static const Seeing kernel;
    ShapesOnly device;
    device.runs = true;
    const auto program = alone(kernel);
    Execution run(program, comm,
                  {.score = {0.35},
                   .sinks_H = at::zeros({program->problem.heads},
                                        at::TensorOptions(at::kFloat).device(at::kMeta)),
                   .max_logit = true,
                   .device = &device});
    for (const int tile : program->program.inputs) {
      run.feed(program->program.tiles[tile].tensor,
               at::empty(program->shapes[tile], at::TensorOptions(at::kFloat).device(at::kMeta)));
    }
    run.finish();
    EXPECT_EQ(kernel.calls, 7);
    EXPECT_TRUE(run.output(plan::Tensor::Out).is_meta());
    EXPECT_TRUE(run.max_logit().is_meta());
  });
}

TEST(Device, IsTheSamePlaceForEveryRunOfAnExecution) {
  const auto body = [](comm::Communicator& comm) {
    ShapesOnly device;
    Execution run(alone(kernel::cpu_kernel()), comm, {.score = {0.35}});
    run.restart(comm, {.score = {0.35}, .device = &device});
  };
  EXPECT_THAT([&] { comm::run_ranks(1, body); },
              testing::ThrowsMessage<InvalidArgument>(
                  "executor: a run on cpu starts again on meta; the same is required"));
}

}  // namespace
}  // namespace armillary::runtime
