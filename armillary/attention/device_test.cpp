// Attention by the kernel of the device that the group computes on.
#include "armillary/runtime/device.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "armillary/attention/testing/small_calls.h"
#include "armillary/comm/local.h"
#include "armillary/core/error.h"
#include "armillary/kernel/adapted_kernel.h"
#include "armillary/kernel/testing/limited_attention.h"
#include "armillary/runtime/rank.h"
#include "armillary/runtime/testing/late_device.h"

namespace armillary::attention {
namespace {

/// A device that runs its ops late, with a kernel adapted from another library's attention.
class LibraryDevice : public runtime::LateDevice {
 public:
  explicit LibraryDevice(std::uint64_t seed) : LateDevice(seed) {}
  ~LibraryDevice() override = default;
  const kernel::Kernel& kernel() const override {
    static const kernel::LimitedAttention library({.causal = true});
    static const kernel::AdaptedKernel kernel(library);
    return kernel;
  }
};

/// Output and gradients, with forward on `device` and backward on `after`; null is the CPU.
std::vector<at::Tensor> attended_on(comm::Communicator& comm,
                                    const std::shared_ptr<runtime::Device>& device,
                                    const std::shared_ptr<runtime::Device>& after) {
  const AttentionOptions options = causal_options("ring");
  const Leaves x(comm, options, at::kFloat);
  runtime::Rank& rank = runtime::Rank::of(comm);
  rank.use(device);
  const at::Tensor out_BLHE = sequence_parallel_attention(x.q, x.k, x.v, comm, options);
  rank.use(after);
  out_BLHE.backward(out_BLHE.detach());
  rank.use(nullptr);
  return {out_BLHE.detach(), x.q.grad(), x.k.grad(), x.v.grad()};
}

// Forward and backward with either kernel, in all four combinations.
TEST(AttentionOnADevice, RunsItsKernelForwardAndBackward) {
  comm::run_ranks(3, [](comm::Communicator& comm) {
    const std::vector<at::Tensor> required = attended_on(comm, nullptr, nullptr);
    for (const bool forward : {false, true}) {
      for (const bool backward : {false, true}) {
        const auto first = forward ? std::make_shared<LibraryDevice>(1) : nullptr;
        const auto second = backward ? std::make_shared<LibraryDevice>(2) : nullptr;
        const std::vector<at::Tensor> actual = attended_on(comm, first, second);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          const at::Tensor error = (actual[i] - required[i]).abs().max();
          EXPECT_LT(error.item<double>(), 1e-5) << forward << backward << " result " << i;
        }
        // The library rounds in another order.
        EXPECT_EQ(actual[0].equal(required[0]), !forward);
        EXPECT_EQ(actual[3].equal(required[3]), !forward && !backward);
      }
    }
  });
}

TEST(AttentionOnADevice, TakesInputsWhereItComputes) {
  const at::Tensor x = at::empty({1, 4, 2, 8}, at::TensorOptions(at::kFloat).device(at::kMeta));
  const AttentionOptions options{.mask = plan::parse_mask("causal", {4, 4})};
  EXPECT_THAT(
      [&] {
        comm::run_ranks(1, [&](comm::Communicator& comm) {
          sequence_parallel_attention(x, x, x, comm, options);
        });
      },
      testing::ThrowsMessage<InvalidArgument>(
          "attention: k is on meta; cpu is required, where the group computes"));
  EXPECT_THAT(
      [&] {
        comm::run_ranks(1, [&](comm::Communicator& comm) {
          sequence_parallel_attention(at::ones({1, 4, 2, 8}), x, x, comm, options);
        });
      },
      testing::ThrowsMessage<InvalidArgument>(
          "attention: k is Float on meta, q is Float on cpu; all must be alike"));
}

}  // namespace
}  // namespace armillary::attention
