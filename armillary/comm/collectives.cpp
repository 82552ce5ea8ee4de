// The functions of collectives.h. Each has three steps: it checks its arguments on this rank,
// agrees with all ranks that they make the same call, and calls the collective of the engine.
//
// To agree, every rank sends a record of its call to every other rank and compares all of them.
// Each rank sees the same records, so all ranks come to the same conclusion without another
// message.
#include "armillary/comm/collectives.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "armillary/comm/exchange.h"
#include "armillary/comm/together.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// Record of a collective as one rank calls it. It travels as bytes and must be equal on all ranks.
struct CollectiveCall {
  std::array<char, 16> operation = {};  ///< Name, padded with zeros; never full.
  std::array<char, 8> dtype = {};       ///< Likewise; empty for a barrier.
  std::int64_t count = 0;               ///< Elements of each rank.
  std::int64_t root = -1;               ///< -1 for collectives without a root.
  std::int64_t on_device = 0;           ///< 1 unless the values are in host memory.

  bool operator==(const CollectiveCall&) const = default;
};
static_assert(sizeof(CollectiveCall) == 48 &&
              std::has_unique_object_representations_v<CollectiveCall>);

CollectiveCall call_of(std::string_view operation, const Array& values, int root = -1) {
  CollectiveCall call{
      .count = values.count, .root = root, .on_device = values.device == kHost ? 0 : 1};
  const std::string_view dtype = to_string(values.dtype);
  ARMILLARY_CHECK(operation.size() < call.operation.size() && dtype.size() < call.dtype.size());
  std::ranges::copy(operation, call.operation.begin());
  std::ranges::copy(dtype, call.dtype.begin());
  return call;
}

/// A call in words, such as "broadcast of 12 byte from rank 1".
std::string text_of(const CollectiveCall& call) {
  std::string text = call.operation.data();
  if (call.dtype[0]) text += fmt::format(" of {} {}", call.count, call.dtype.data());
  if (call.on_device != 0) text += " on a device";
  if (call.root >= 0) text += fmt::format(" from rank {}", call.root);
  return text;
}

/// Returns when all ranks are known to make the same call. @throws InvalidArgument, on all ranks
/// with the same text, if one call differs from that of rank 0.
void agree(Communicator& comm, CollectiveCall mine) {
  if (comm.world() == 1) return;
  // Every rank gets the calls of all ranks, and looks for the first that differs.
  std::vector<CollectiveCall> calls(comm.world(), mine);
  exchange(
      comm, [&](int) { return std::as_bytes(std::span(&mine, 1)); },
      [&](int rank) { return std::as_writable_bytes(std::span(&calls[rank], 1)); });
  const auto other =
      std::ranges::find_if(calls, [&](const CollectiveCall& c) { return c != calls[0]; });
  if (other == calls.end()) return;
  meet(comm);  // A barrier: all ranks are known to come to it, so it finds no difference.
  fail<InvalidArgument>(
      "{}: rank 0 calls {}, rank {} calls {}; the same call is required on all ranks",
      calls[0].operation.data(), text_of(calls[0]), other - calls.begin(), text_of(*other));
}

/// @throws InvalidArgument if the dtypes or the places differ.
void expect_same_kind(const char* operation, const Array& a, const Array& b) {
  if (a.dtype != b.dtype) {
    fail<InvalidArgument>("{}: {} and {}; one dtype is required", operation, to_string(a.dtype),
                          to_string(b.dtype));
  }
  if (a.device != b.device) {
    fail<InvalidArgument>("{}: memory of devices {} and {} (-1 is the host); one is required",
                          operation, a.device, b.device);
  }
}

/// @throws InvalidArgument for bytes, which have no sum.
void expect_numbers(const char* operation, const Array& values) {
  if (values.dtype != Dtype::Byte) return;
  fail<InvalidArgument>("{}: bytes have no sum; int64, bf16, fp16, fp32 or fp64 is required",
                        operation);
}

/// @throws InvalidArgument unless `all` has room for as many elements of each rank as `mine` has.
void expect_parts(const Communicator& comm, const char* operation, const Array& all,
                  const Array& mine) {
  expect_same_kind(operation, all, mine);
  const std::int64_t required = comm.world() * mine.count;
  if (all.count == required) return;
  fail<InvalidArgument>("{}: {} {} for {} ranks of {}; {} are required", operation, all.count,
                        to_string(all.dtype), comm.world(), mine.count, required);
}

}  // namespace

void all_reduce(Communicator& comm, const Array& values, Reduction reduction) {
  const char* operation = reduction == Reduction::Sum ? "all_reduce_sum" : "all_reduce_max";
  expect_numbers(operation, values);
  agree(comm, call_of(operation, values));
  comm.collectives().all_reduce(values, reduction);
}

void all_reduce_sum(Communicator& comm, std::span<float> values) {
  all_reduce(comm, array(values));
}
void all_reduce_sum(Communicator& comm, std::span<double> values) {
  all_reduce(comm, array(values));
}

void reduce_scatter(Communicator& comm, const Array& all, const Array& mine, Reduction reduction) {
  const char* operation = reduction == Reduction::Sum ? "scatter_sum" : "scatter_max";
  expect_numbers("reduce_scatter", all);
  expect_parts(comm, "reduce_scatter", all, mine);
  agree(comm, call_of(operation, mine));
  comm.collectives().reduce_scatter(all, mine, reduction);
}

void all_gather(Communicator& comm, const Array& mine, const Array& all) {
  expect_parts(comm, "all_gather", all, mine);
  agree(comm, call_of("all_gather", mine));
  comm.collectives().all_gather(mine, all);
}

void all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all) {
  all_gather(comm, array(mine), array(all));
}

void all_to_all(Communicator& comm, const Array& sent, const Array& received) {
  expect_same_kind("all_to_all", sent, received);
  if (sent.count != received.count || sent.count % comm.world() != 0) {
    fail<InvalidArgument>(
        "all_to_all: sends {} and receives {} {}; equal counts that {} ranks divide are required",
        sent.count, received.count, to_string(sent.dtype), comm.world());
  }
  agree(comm, call_of("all_to_all", sent));
  comm.collectives().all_to_all(sent, received);
}

void broadcast(Communicator& comm, const Array& values, int root) {
  if (root < 0 || root >= comm.world()) {
    fail<InvalidArgument>("broadcast: root {}; a rank in [0, {}) is required", root, comm.world());
  }
  agree(comm, call_of("broadcast", values, root));
  comm.collectives().broadcast(values, root);
}

void broadcast(Communicator& comm, std::span<std::byte> bytes, int root) {
  broadcast(comm, array(bytes), root);
}

void barrier(Communicator& comm) {
  CollectiveCall call;  // A barrier has no values, so call_of cannot make its record.
  std::ranges::copy(std::string_view("barrier"), call.operation.begin());
  agree(comm, call);
  comm.collectives().barrier();
}

}  // namespace armillary::comm
