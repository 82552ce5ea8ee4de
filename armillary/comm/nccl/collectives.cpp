#include "armillary/comm/nccl/collectives.h"

#include "armillary/comm/call_labels.h"
#include "armillary/comm/nccl/communicator.h"

namespace armillary::comm {
namespace {

/// Whether NCCL moves the array. Both arrays of a collective are in one place, on all ranks.
bool on_device(const Array& array) {
  return array.device != kHost;
}

/// The part of one rank in `all`.
std::span<std::byte> part_of(const Array& all, int rank, int world) {
  const std::int64_t bytes = all.bytes() / world;
  return {all.data + rank * bytes, static_cast<std::size_t>(bytes)};
}

}  // namespace

NcclCollectives::NcclCollectives(NcclCommunicator& comm) : Collectives(comm), nccl_(comm) {}

// Arrays in host memory take the way of all engines; empty ones need no kernel.
void NcclCollectives::all_reduce(const Array& values, Reduction reduction) {
  if (!on_device(values)) return Collectives::all_reduce(values, reduction);
  agree(all_reduce_label(values, reduction));
  if (values.count == 0) return;
  nccl_.run("all_reduce", [&](NcclComm comm, GpuStream stream) {
    nccl_.api().all_reduce(comm, stream, values, reduction);
  });
}

void NcclCollectives::reduce_scatter(const Array& all, const Array& mine, Reduction reduction) {
  if (!on_device(all)) return Collectives::reduce_scatter(all, mine, reduction);
  agree(reduce_scatter_label(all, reduction));
  if (mine.count == 0) return;
  nccl_.run("reduce_scatter", [&](NcclComm comm, GpuStream stream) {
    nccl_.api().reduce_scatter(comm, stream, all, mine, reduction);
  });
}

void NcclCollectives::all_gather(const Array& mine, const Array& all) {
  if (!on_device(mine)) return Collectives::all_gather(mine, all);
  agree(call_label("all_gather", all));
  if (mine.count == 0) return;
  nccl_.run("all_gather", [&](NcclComm comm, GpuStream stream) {
    nccl_.api().all_gather(comm, stream, mine, all);
  });
}

// One group with a message to and from each rank, this one included.
void NcclCollectives::all_to_all(const Array& outgoing, const Array& incoming) {
  if (!on_device(outgoing)) return Collectives::all_to_all(outgoing, incoming);
  agree(call_label("all_to_all", outgoing));
  if (outgoing.count == 0) return;
  const int world = comm_.world();
  nccl_.run("all_to_all", [&](NcclComm comm, GpuStream stream) {
    for (int rank = 0; rank < world; ++rank) {
      nccl_.api().send(comm, stream, part_of(outgoing, rank, world), rank);
      nccl_.api().receive(comm, stream, part_of(incoming, rank, world), rank);
    }
  });
}

void NcclCollectives::broadcast(const Array& values, int root) {
  if (!on_device(values)) return Collectives::broadcast(values, root);
  agree(broadcast_label(values, root));
  if (values.count == 0) return;
  nccl_.run("broadcast", [&](NcclComm comm, GpuStream stream) {
    nccl_.api().broadcast(comm, stream, values, root);
  });
}

}  // namespace armillary::comm
