#include "armillary/attention/testing/mesh_attention.h"

#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <array>
#include <span>
#include <vector>

#include "armillary/attention/attention.h"
#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/comm/mesh.h"

namespace armillary::attention {
namespace {

constexpr std::int64_t kTokens = 24;  // of each rank

/// Tokens of a rank of a replica.
at::Tensor input(int replica, int rank) {
  return at::arange(kTokens * 2 * 8, at::kFloat)
      .add(1000. * replica + 100. * rank)
      .sin()
      .view({1, kTokens, 2, 8});
}

AttentionOptions causal_pair() {
  return {.mask = plan::causal_mask({2 * kTokens, 2 * kTokens}, plan::Align::Start),
          .layout = plan::parse_layout("contiguous")};
}

/// The output of one rank of a replica whose two ranks are threads and alone.
at::Tensor output_alone(int replica, int rank) {
  std::array<at::Tensor, 2> outputs;
  comm::run_ranks(2, [&](comm::Communicator& comm) {
    const at::Tensor x = input(replica, comm.rank());
    outputs[comm.rank()] = sequence_parallel_attention(x, x, x, comm, causal_pair());
  });
  return outputs[rank];
}

}  // namespace

std::string attend_beside_sums(comm::Communicator& world, int steps) {
  const comm::Mesh mesh(world, {.dp = 2, .cp = 2});
  comm::Communicator& cp = mesh.along(MeshAxis::Cp);
  comm::Communicator& dp = mesh.along(MeshAxis::Dp);
  const int replica = mesh.index(MeshAxis::Dp);
  const at::Tensor alone = output_alone(replica, cp.rank());
  const at::Tensor x = input(replica, cp.rank());
  for (int step = 0; step < steps; ++step) {
    // K and V travel along cp while a gradient is summed over dp.
    auto call =
        Attention(cp, causal_pair()).begin(CallKind::Attention, attention_shape_of(x, x, x));
    call.feed_k(x);
    call.feed_v(x);
    std::vector<float> gradient(1000, static_cast<float>(world.rank()));
    std::vector<float> sum(500);
    const comm::Request request = comm::start_reduce_scatter(dp, comm::array(std::span(gradient)),
                                                             comm::array(std::span(sum)));
    const at::Tensor out = call.finish(x, x, x).out_BLHE;
    if (!out.equal(alone)) return fmt::format("step {}: other bits than alone", step);
    dp.wait(request);
    if (sum != std::vector<float>(500, static_cast<float>(2 * cp.rank() + 2))) {
      return fmt::format("step {}: another sum over dp", step);
    }
  }
  return "";
}

}  // namespace armillary::attention
