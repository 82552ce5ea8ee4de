// api.h: the calls of CUDA and NCCL that the engine makes. Internal to nccl.h.
//
// nccl_library/ makes them of the libraries, testing/fake_nccl.h makes them of threads, for
// machines without a GPU. None of them waits for a peer: NCCL's communicators are nonblocking, and
// a call on one that has not ended must not be followed by another on it before ready() is true.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "armillary/comm/array.h"
#include "armillary/comm/reduce.h"

namespace armillary::comm {

// Handles of a library's own objects.

using GpuStream = struct GpuStreamOfLibrary*;
using GpuEvent = struct GpuEventOfLibrary*;
using NcclComm = struct NcclCommOfLibrary*;

/// The name of a communicator that is to be made; rank 0 makes it.
struct NcclId {
  std::array<char, 128> bytes;
};

/// One rank's end of a communicator that is to be made.
struct NcclInit {
  NcclId id;
  int rank = 0;
  int world = 1;
  int most_blocks = 0;  ///< The most that one of its kernels may have.
};

/// Rows to copy, between memory of the device and of the host in any direction.
struct RowCopy {
  std::byte* to;
  std::int64_t to_stride;
  const std::byte* from;
  std::int64_t from_stride;
  std::int64_t row_bytes;
  std::int64_t rows;
};

/// The libraries, as one rank calls them, on one thread. Every function may throw CommError with
/// the name of the call and the library's text.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  // CUDA. Work of a stream runs in order, and after the call has returned.

  virtual int devices() = 0;
  /// The device of all later calls of this thread.
  virtual void use_device(int device) = 0;
  virtual GpuStream make_stream() = 0;
  virtual void drop_stream(GpuStream stream) = 0;
  /// An event that is done when the stream has come to this place.
  virtual GpuEvent record(GpuStream stream) = 0;
  virtual bool is_done(GpuEvent event) = 0;
  virtual void drop_event(GpuEvent event) = 0;
  /// Memory that work of this stream may use from now on, without waiting for other streams.
  virtual std::byte* allocate(std::int64_t bytes, GpuStream stream) = 0;
  /// Gives it back when the work that was started before is over.
  virtual void release(std::byte* memory, GpuStream stream) = 0;
  virtual void copy(const RowCopy& rows, GpuStream stream) = 0;

  // NCCL. A group is begun, filled with messages of one communicator, and ended.

  virtual NcclId make_id() = 0;
  virtual NcclComm begin_init(const NcclInit& init) = 0;
  /// Whether the calls so far have ended, so that the work of a group is in its stream. Throws if
  /// the communicator has failed, also later by itself.
  virtual bool ready(NcclComm comm) = 0;
  virtual void begin_group() = 0;
  virtual void end_group() = 0;
  /// Ends a group in which a call has failed: what this thread calls next is no part of it. Does
  /// not throw.
  virtual void drop_group() noexcept = 0;
  virtual void send(NcclComm comm, GpuStream stream, std::span<const std::byte> bytes,
                    int peer) = 0;
  virtual void receive(NcclComm comm, GpuStream stream, std::span<std::byte> bytes, int peer) = 0;
  virtual void all_reduce(NcclComm comm, GpuStream stream, const Array& values,
                          Reduction reduction) = 0;
  virtual void reduce_scatter(NcclComm comm, GpuStream stream, const Array& all, const Array& mine,
                              Reduction reduction) = 0;
  virtual void all_gather(NcclComm comm, GpuStream stream, const Array& mine, const Array& all) = 0;
  virtual void broadcast(NcclComm comm, GpuStream stream, const Array& values, int root) = 0;
  /// Begins to end a communicator that all ranks end; then it is ready() once more.
  virtual void begin_end(NcclComm comm) = 0;
  /// Frees a communicator whose end is ready.
  virtual void drop(NcclComm comm) = 0;
  /// Frees communicators at once, and ends their kernels. All of a device have to be named in one
  /// call, as each may wait for the kernels of the others. May be called from another thread.
  virtual void abort(std::span<const NcclComm> comms) = 0;
};

/// The libraries of this machine. @throws InvalidArgument with the text of nccl_missing().
std::unique_ptr<NcclApi> load_nccl();

}  // namespace armillary::comm
