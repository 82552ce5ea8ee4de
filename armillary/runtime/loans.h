// loans.h: messages that are read where the sender has them, where ranks share memory.
//
//   rank 0   K of the caller, or a slot --send--> lends            done when given back
//   rank 1   recv --> operands point there --> attend, merge, ... --> gives back
//
// The plan says which messages may be (plan/passes/lower.h, `lend`): nothing is written over what
// is sent, and nobody else writes what is received. Only the end of a run waits for a loan: until
// the peer has computed with the tile, where it would not wait for a copy; under the same deadline,
// which must be longer than a peer computes between two messages in any case. No op waits, so no
// plan that was free of deadlocks gets one. What is borrowed is copied on, not lent on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/runtime/compiled_program.h"
#include "armillary/runtime/operands.h"

namespace armillary::runtime {

/// Those of one run after the other. One thread. Makes no tensor and allocates nothing in a run.
class Loans {
 public:
  /// `compiled` must stay where it is.
  Loans(const CompiledProgram& compiled, at::Device place);

  /// Allows the loan of a message of `op` if its rule and memory do. `memory` holds the tile of a
  /// send, and lives until the last borrower gave it back.
  void allow(int op, const at::Tensor& memory, comm::Message& message);

  /// Points the operands at what the receive `op`, which is done, borrows. Returns its bytes; 0 if
  /// it was copied.
  std::int64_t borrow(int op, const comm::Request& request, Operands& operands);

  /// Gives back what has been read: all `readers` are complete. @throws CommError as the
  /// communicator.
  void give_back_read(const std::vector<bool>& complete, comm::Communicator& comm,
                      Operands& operands);

  /// Lets go of what was lent. Requires that it was given back.
  void release();

 private:
  struct Tile {
    std::shared_ptr<at::Tensor> owner;  ///< Of what is lent; null if no send may.
    at::Tensor shown;                   ///< Of what is borrowed; undefined if no receive may.
    c10::Storage memory;                ///< Likewise; the sender's.
    bool borrowed = false;
    std::vector<int> readers;  ///< Of what may be borrowed: the ops that read it.
  };
  struct Borrowed {
    int op;
    comm::Request request;
    c10::Storage own;  ///< Where the tile was, and is when the loan is over.
    std::int64_t own_begin;
  };
  void show(int tile, const c10::Storage& memory, at::IntArrayRef strides, std::int64_t begin,
            Operands& operands);

  const CompiledProgram& compiled_;
  std::vector<Tile> tiles_;
  std::vector<Borrowed> borrowed_;
};

}  // namespace armillary::runtime
