// Checks what is asked for, agrees on it with all ranks, then lets the engine do it.
#include "armillary/comm/collectives.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "armillary/comm/exchange.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// A collective as one rank calls it; the same bytes on all ranks, or nothing moves.
struct Call {
  std::array<char, 16> operation = {};
  std::array<char, 8> dtype = {};
  std::int64_t count = 0;  ///< Elements of each rank.
  std::int64_t root = -1;  ///< Of what has one.

  bool operator==(const Call&) const = default;
};
static_assert(sizeof(Call) == 40 && std::has_unique_object_representations_v<Call>);

Call call_of(std::string_view operation, const Array& values, int root = -1) {
  Call call{.count = values.count, .root = root};
  const std::string_view dtype = to_string(values.dtype);
  ARMILLARY_CHECK(operation.size() < call.operation.size() && dtype.size() < call.dtype.size());
  std::ranges::copy(operation, call.operation.begin());
  std::ranges::copy(dtype, call.dtype.begin());
  return call;
}

/// "broadcast of 12 byte from rank 1"
std::string text_of(const Call& call) {
  std::string text = call.operation.data();
  if (call.dtype[0]) text += fmt::format(" of {} {}", call.count, call.dtype.data());
  if (call.root >= 0) text += fmt::format(" from rank {}", call.root);
  return text;
}

/// Returns when all ranks are known to make the same call.
void agree(Communicator& comm, Call mine) {
  if (comm.world() == 1) return;
  std::vector<Call> calls(comm.world(), mine);
  exchange(
      comm, [&](int) { return std::as_bytes(std::span(&mine, 1)); },
      [&](int rank) { return std::as_writable_bytes(std::span(&calls[rank], 1)); });
  const auto other = std::ranges::find_if(calls, [&](const Call& c) { return c != calls[0]; });
  if (other == calls.end()) return;
  try {  // Until all ranks have all calls: who leaves first ends the group.
    const auto nothing = [](int) { return std::span<std::byte>(); };
    exchange(comm, nothing, nothing);
  } catch (const CommError&) {  // Somebody has left, and so all had come.
  }
  fail<InvalidArgument>(
      "{}: rank 0 calls {}, rank {} calls {}; the same call is required on all ranks",
      calls[0].operation.data(), text_of(calls[0]), other - calls.begin(), text_of(*other));
}

void expect_same_dtype(const char* operation, const Array& a, const Array& b) {
  if (a.dtype == b.dtype) return;
  fail<InvalidArgument>("{}: {} and {}; one dtype is required", operation, to_string(a.dtype),
                        to_string(b.dtype));
}

void expect_numbers(const char* operation, const Array& values) {
  if (values.dtype != Dtype::Byte) return;
  fail<InvalidArgument>("{}: bytes have no sum; int64, bf16, fp16, fp32 or fp64 is required",
                        operation);
}

/// `all` is a part for each rank.
void expect_parts(const Communicator& comm, const char* operation, const Array& all,
                  const Array& mine) {
  expect_same_dtype(operation, all, mine);
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
  expect_same_dtype("all_to_all", sent, received);
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
  Call call;
  std::ranges::copy(std::string_view("barrier"), call.operation.begin());
  agree(comm, call);
  comm.collectives().barrier();
}

}  // namespace armillary::comm
