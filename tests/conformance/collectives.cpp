// Collectives that block: results for every dtype, and arguments that are refused before anything
// is started. Calls that differ are those of differences.cpp.
#include "armillary/comm/collectives.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/half_floats.h"
#include "tests/conformance/conformance.h"

namespace armillary::comm {
namespace {

/// Element i of the values of rank r, small enough to be exact in every dtype.
int value_of(int rank, std::int64_t i) {
  return static_cast<int>((7 * std::int64_t{rank} + 3 * i) % 11) - 5;
}

/// `count` elements: value(0), value(1), ...
std::vector<std::byte> values_of(ElementType dtype, std::int64_t count,
                                 const std::function<int(std::int64_t)>& value) {
  std::vector<std::byte> bytes(count * size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* const to = bytes.data() + i * size_of(dtype);
    const int x = value(i);
    const auto put = [&](auto number) { std::memcpy(to, &number, sizeof(number)); };
    switch (dtype) {
      case ElementType::Byte:
        put(static_cast<std::uint8_t>(x));
        break;
      case ElementType::Int64:
        put(static_cast<std::int64_t>(x));
        break;
      case ElementType::Bf16:
        put(Bf16(static_cast<float>(x)).bits);
        break;
      case ElementType::Fp16:
        put(Fp16(static_cast<float>(x)).bits);
        break;
      case ElementType::Fp32:
        put(static_cast<float>(x));
        break;
      case ElementType::Fp64:
        put(static_cast<double>(x));
        break;
    }
  }
  return bytes;
}

Array array_of(std::vector<std::byte>& bytes, ElementType dtype) {
  return {bytes.data(), static_cast<std::int64_t>(bytes.size()) / size_of(dtype), dtype};
}

constexpr std::array kDtypes{ElementType::Byte, ElementType::Int64, ElementType::Bf16,
                             ElementType::Fp16, ElementType::Fp32,  ElementType::Fp64};

TEST_P(CommunicatorConformance, CollectivesMoveEveryDtype) {
  for (const int world : worlds({1, 2, 3, 5})) {
    run(world, [](Communicator& comm) {
      const int P = comm.world();
      const int self = comm.rank();
      for (const ElementType dtype : kDtypes) {
        for (const std::int64_t count : {0, 1, 5}) {
          const auto mine_at = [&](int rank) {
            return [rank](std::int64_t i) { return value_of(rank, i); };
          };
          std::vector<std::byte> mine = values_of(dtype, count, mine_at(self));
          std::vector<std::byte> all(P * count * size_of(dtype));
          all_gather(comm, array_of(mine, dtype), array_of(all, dtype));
          EXPECT_EQ(all, values_of(dtype, P * count, [&](std::int64_t i) {
                      return value_of(static_cast<int>(i / count), i % count);
                    }));

          std::vector<std::byte> outgoing = values_of(dtype, P * count, mine_at(self));
          std::vector<std::byte> incoming(outgoing.size());
          all_to_all(comm, array_of(outgoing, dtype), array_of(incoming, dtype));
          EXPECT_EQ(incoming, values_of(dtype, P * count, [&](std::int64_t i) {
                      return value_of(static_cast<int>(i / count), self * count + i % count);
                    }));

          broadcast(comm, array_of(mine, dtype), P - 1);
          EXPECT_EQ(mine, values_of(dtype, count, mine_at(P - 1))) << to_string(dtype);
        }
      }
    });
  }
}

TEST_P(CommunicatorConformance, CollectivesReduceEveryDtype) {
  for (const int world : worlds({1, 2, 3, 5})) {
    run(world, [](Communicator& comm) {
      const int P = comm.world();
      const auto reduced = [&](Reduction reduction, std::int64_t i) {
        int result = value_of(0, i);
        for (int rank = 1; rank < P; ++rank) {
          const int x = value_of(rank, i);
          result = reduction == Reduction::Sum ? result + x : std::max(result, x);
        }
        return result;
      };
      for (const ElementType dtype : std::span(kDtypes).subspan(1)) {
        for (const Reduction reduction : {Reduction::Sum, Reduction::Max}) {
          for (const std::int64_t count : {0, 1, 4, 2500}) {
            const auto own = [&](std::int64_t i) { return value_of(comm.rank(), i); };
            std::vector<std::byte> values = values_of(dtype, count, own);
            all_reduce(comm, array_of(values, dtype), reduction);
            EXPECT_EQ(values, values_of(dtype, count,
                                        [&](std::int64_t i) { return reduced(reduction, i); }))
                << to_string(dtype);

            std::vector<std::byte> all = values_of(dtype, P * count, own);
            const std::vector<std::byte> before = all;
            std::vector<std::byte> mine(count * size_of(dtype));
            reduce_scatter(comm, array_of(all, dtype), array_of(mine, dtype), reduction);
            EXPECT_EQ(mine, values_of(dtype, count,
                                      [&](std::int64_t i) {
                                        return reduced(reduction, comm.rank() * count + i);
                                      }))
                << to_string(dtype);
            EXPECT_EQ(all, before);
          }
        }
      }
    });
  }
}

TEST_P(CommunicatorConformance, CollectivesRefuseWhatDoesNotFit) {
  ARMILLARY_NEEDS_RANKS(2);
  run(2, [](Communicator& comm) {
    std::vector<float> floats(4);
    std::vector<double> doubles(8);
    std::vector<std::byte> bytes(4);
    const auto refused = [](const std::function<void()>& call, const std::string& text) {
      EXPECT_THAT(call, testing::ThrowsMessage<InvalidArgument>(text));
    };
    const Array x = array(std::span(floats));
    refused([&] { all_reduce(comm, array(std::span(bytes))); },
            "all_reduce_sum: bytes have no sum; int64, bf16, fp16, fp32 or fp64 is required");
    refused([&] { all_gather(comm, x, array(std::span(doubles))); },
            "all_gather: fp64 and fp32; one dtype is required");
    refused([&] { reduce_scatter(comm, x, x); },
            "reduce_scatter: 4 fp32 for 2 ranks of 4; 8 are required");
    refused([&] { all_to_all(comm, array(std::span(floats).first(3)), x); },
            "all_to_all: sends 3 and receives 4 fp32; equal counts that 2 ranks divide are "
            "required");
    refused(
        [&] {
          all_to_all(comm, array(std::span(floats).first(3)), array(std::span(floats).first(3)));
        },
        "all_to_all: sends 3 and receives 3 fp32; equal counts that 2 ranks divide are "
        "required");
    barrier(comm);  // Nothing was started, so the group is usable.
  });
}

TEST_P(CommunicatorConformance, AbortEndsABlockedCollective) {
  ARMILLARY_NEEDS_RANKS(3);
  EXPECT_THROW(run(3,
                   [](Communicator& comm) {
                     if (comm.rank() == 2) return comm.abort("over");
                     try {
                       barrier(comm);
                       ADD_FAILURE() << "no exception";
                     } catch (const CommError& e) {
                       EXPECT_STREQ(e.what(), "rank 2 failed: over");
                     }
                   }),
               CommError);
}

}  // namespace
}  // namespace armillary::comm
