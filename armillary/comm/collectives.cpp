// The functions of collectives.h. Each checks its arguments on this rank and calls the collective
// of the engine.
#include "armillary/comm/collectives.h"

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

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
  if (values.dtype != ElementType::Byte) return;
  fail<InvalidArgument>("{}: bytes have no sum; int64, bf16, fp16, fp32 or fp64 is required",
                        operation);
}

/// @throws InvalidArgument unless `all` has room for as many elements of each rank as `mine` has.
void expect_parts(const Communicator& comm, const char* operation, const Array& all,
                  const Array& mine) {
  expect_same_kind(operation, all, mine);
  const std::int64_t required = comm.world() * mine.count;
  if (all.count == required) return;
  fail<InvalidArgument>("{}: {} {} for {} of {}; {} are required", operation, all.count,
                        to_string(all.dtype), count_of(comm.world(), "rank"), mine.count, required);
}

}  // namespace

void all_reduce(Communicator& comm, const Array& values, Reduction reduction) {
  expect_numbers(reduction == Reduction::Sum ? "all_reduce_sum" : "all_reduce_max", values);
  comm.collectives().all_reduce(values, reduction);
}

void all_reduce_sum(Communicator& comm, std::span<float> values) {
  all_reduce(comm, array(values));
}
void all_reduce_sum(Communicator& comm, std::span<double> values) {
  all_reduce(comm, array(values));
}

void reduce_scatter(Communicator& comm, const Array& all, const Array& mine, Reduction reduction) {
  expect_numbers("reduce_scatter", all);
  expect_parts(comm, "reduce_scatter", all, mine);
  comm.collectives().reduce_scatter(all, mine, reduction);
}

void all_gather(Communicator& comm, const Array& mine, const Array& all) {
  expect_parts(comm, "all_gather", all, mine);
  comm.collectives().all_gather(mine, all);
}

void all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all) {
  all_gather(comm, array(mine), array(all));
}

void all_to_all(Communicator& comm, const Array& outgoing, const Array& incoming) {
  expect_same_kind("all_to_all", outgoing, incoming);
  if (outgoing.count != incoming.count || outgoing.count % comm.world() != 0) {
    fail<InvalidArgument>(
        "all_to_all: sends {} and receives {} {}; equal counts that {} ranks divide are required",
        outgoing.count, incoming.count, to_string(outgoing.dtype), comm.world());
  }
  comm.collectives().all_to_all(outgoing, incoming);
}

void broadcast(Communicator& comm, const Array& values, int root) {
  if (root < 0 || root >= comm.world()) {
    fail<InvalidArgument>("broadcast: root {}; a rank in [0, {}) is required", root, comm.world());
  }
  comm.collectives().broadcast(values, root);
}

void broadcast(Communicator& comm, std::span<std::byte> bytes, int root) {
  broadcast(comm, array(bytes), root);
}

void barrier(Communicator& comm) {
  comm.collectives().barrier();
}

}  // namespace armillary::comm
