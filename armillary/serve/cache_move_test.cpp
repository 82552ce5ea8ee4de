// cache_move_test.cpp: K and V arrive at their new owners with their values, by every relayout
// between small layouts: of tokens, heads, copies of heads and stages; as many bytes as planned.
#include "armillary/serve/cache_move.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "armillary/comm/local.h"
#include "armillary/comm/watched_communicator.h"
#include "armillary/plan/relayout/testing/relayout_shapes.h"

namespace armillary::serve {
namespace {

using plan::relayout::CacheLayout;
using plan::relayout::RelayoutShape;

/// A rank's K or V of a layer: each element tells layer, head, position and place.
at::Tensor values_of(const CacheLayout& layout, const RelayoutShape& shape, int rank, int layer,
                     std::int64_t dim) {
  const auto place = place_of(layout, rank);
  if (!place) return at::zeros({0, 0, dim});
  const plan::Interval layers = layers_of(layout, shape.cache.layers, place->stage);
  const plan::Heads heads = heads_of(layout, shape.cache.kv_heads, place->head_group);
  if (layer < layers.begin || layer >= layers.end) return at::zeros({0, heads.count(), dim});
  const std::vector<std::int64_t> positions =
      plan::positions(token_runs(layout)[static_cast<std::size_t>(place->token_rank)]);
  at::Tensor values = at::zeros({static_cast<std::int64_t>(positions.size()), heads.count(), dim});
  for (std::size_t i = 0; i < positions.size(); ++i) {
    for (int head = heads.begin; head < heads.end; ++head) {
      for (std::int64_t d = 0; d < dim; ++d) {
        values[static_cast<std::int64_t>(i)][head - heads.begin][d] =
            static_cast<double>(d + 10 * (head + 10 * (layer + 10 * positions[i])));
      }
    }
  }
  return values;
}

TEST(CacheMove, BringsValuesToTheirOwners) {
  const std::vector<RelayoutShape> shapes = plan::relayout::small_relayouts(13);
  for (std::size_t i = 0; i < shapes.size(); i += 11) {
    RelayoutShape shape = shapes[i];
    shape.cache.dtype = plan::Dtype::F32;
    std::atomic<std::int64_t> bytes = 0;
    std::atomic<std::int64_t> planned = 0;
    comm::run_ranks(shape.world, [&](comm::Communicator& inner) {
      comm::WatchedCommunicator comm(inner, [&](const comm::Message& message) {
        if (message.direction == comm::Direction::Send) bytes += comm::total_bytes(message.parts);
      });
      const CacheMove move(comm, shape);
      planned = move.moved_bytes();
      for (int layer = 0; layer < shape.cache.layers; ++layer) {
        const auto own = [&](const CacheLayout& layout, std::int64_t dim) {
          return values_of(layout, shape, comm.rank(), layer, dim);
        };
        const LayerKv arrived = move.move(
            layer, {own(shape.from, shape.cache.head_dim), own(shape.from, shape.cache.value_dim)});
        EXPECT_TRUE(at::equal(arrived.k_LGD, own(shape.to, shape.cache.head_dim)))
            << name_of(shape) << ": K of layer " << layer << " on rank " << comm.rank();
        EXPECT_TRUE(at::equal(arrived.v_LGE, own(shape.to, shape.cache.value_dim)))
            << name_of(shape) << ": V of layer " << layer << " on rank " << comm.rank();
      }
    });
    EXPECT_EQ(bytes.load(), planned.load()) << name_of(shape);
  }
}

}  // namespace
}  // namespace armillary::serve
