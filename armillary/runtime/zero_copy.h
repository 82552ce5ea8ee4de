// zero_copy.h: messages without a copy, between ranks that share memory.
//
//   rank 0   K of the caller, or a slot --send-->                    done when it is given back
//   rank 1   recv --> operands point there --> attend, merge, ... --> given back
//
// The plan decides which messages may do without a copy (plan/passes/lower.h, `zero_copy`): nothing
// is written over the tile that is sent, and no other op writes the tile that is received. A tile
// that is borrowed itself is sent on as a copy.
//
// A send without a copy is done only when its reader has given the tile back. No op waits for such
// a send, only the end of the run does, so no plan that was free of deadlocks gets one. That wait
// has the deadline of a message, which must be longer than a peer computes between two messages in
// any case.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/runtime/bound_tensors.h"
#include "armillary/runtime/machine_program.h"

namespace armillary::runtime {

/// The messages of one execution that need no copy, for one run after the other. Threads: one.
/// Everything is made by the constructor: a run creates no tensor and allocates nothing.
class ZeroCopy {
 public:
  /// `compiled` must not move and must outlive this object; `place` is the device of all tiles.
  ZeroCopy(const MachineProgram& compiled, at::Device place);

  /// Marks the message of `op` as zero copy if the plan allows it and its tile is not borrowed.
  /// `memory` holds the tile of a send; it is kept alive until the last reader has given it back.
  void allow(int op, const at::Tensor& memory, comm::Message& message);

  /// Binds the tile of the receive `op`, whose `request` is done, to the sender's memory. Returns
  /// the bytes that were not copied; 0 if the message was copied.
  std::int64_t borrow(int op, const comm::Request& request, BoundTensors& bound_tensors);

  /// Gives back every borrowed tile whose readers are all complete, and binds it to its own memory
  /// again. `complete` is by op. @throws CommError as Communicator::give_back.
  void give_back_read(const std::vector<bool>& complete, comm::Communicator& comm,
                      BoundTensors& bound_tensors);

  /// Releases the memory of tiles that peers have borrowed. All must have been given back.
  void release();

 private:
  struct BorrowedTile {
    /// Keeps the memory of a tile alive that a peer borrows; null if no send of it is zero copy.
    std::shared_ptr<at::Tensor> owner;
    /// The whole tile as a tensor on the sender's memory; undefined if no receive is zero copy.
    at::Tensor shown;
    c10::Storage memory;  ///< storage of `shown`; its pointer is the sender's while borrowed
    bool borrowed = false;
    std::vector<int> readers;  ///< ops that read the tile; only if a receive is zero copy
  };
  /// A tile that is borrowed now, and its own memory, which it gets back afterwards.
  struct Borrowed {
    int op;
    comm::Request request;
    c10::Storage own;
    std::int64_t own_begin;  ///< storage offset of the tile in `own`
  };
  void bind(int tile, const c10::Storage& memory, at::IntArrayRef strides, std::int64_t begin,
            BoundTensors& bound_tensors);

  const MachineProgram& compiled_;
  std::vector<BorrowedTile> tiles_;
  std::vector<Borrowed> borrowed_;
};

}  // namespace armillary::runtime
