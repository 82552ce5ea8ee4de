// executor.h: the reader that runs a plan on tensors. The only place where plans meet tensors.
//
// A small machine with one in-order queue per lane. The next batch of a lane starts as soon as the
// ops it waits for are complete and the inputs it reads are fed; sends and receives are under way
// while the compute lane works. What the verifier proved of the plan is what happens here: the same
// dependencies (plan/hazards.h), the same order of messages.
//
//   Execution run(compiled, comm, options);
//   run.feed(Tensor::K, k);        // its sends start while v and q are still being projected
//   run.feed(Tensor::V, v);
//   run.feed(Tensor::Q, q);
//   run.finish();
//   at::Tensor out = run.output(Tensor::Out);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "armillary/attention/compiled_program.h"
#include "armillary/comm/communicator.h"
#include "armillary/kernel/block_attention.h"

namespace armillary::attention {

struct ExecutionOptions {
  kernel::Score score;  ///< Slopes are those of all query heads.
  /// Attention sinks: one logit for each of all query heads, in the accumulator dtype. They join in
  /// the plan's `finish`, and get their gradient at its `delta`: once for every row.
  at::Tensor sinks_H = {};
  bool max_logit = false;  ///< Forward only: for max_logit().
  /// Longest that a run waits for its peers without any message arriving; the communicator's own
  /// timeout if not given.
  std::optional<double> timeout_s = {};
};

/// What a run has moved. Bytes are those of plan::traffic of the program once it is finished.
struct Moved {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t sent_messages = 0;
  std::int64_t received_messages = 0;
};

/// One run of one rank's program. One thread. Must not outlive the communicator.
///
/// A failure of any kind (a kernel that throws, a peer that is gone, a deadline) aborts the group,
/// so that every rank leaves within a second with the first reason.
class Execution {
 public:
  Execution(std::shared_ptr<const CompiledProgram> compiled, comm::Communicator& comm,
            ExecutionOptions options);

  /// Gives an input (in backward: dOut, or a saved tensor), contiguous or not: [B, L, heads, dim]
  /// in the problem's dtype; Lse in its accumulator. Starts whatever it makes possible.
  /// @throws InvalidArgument on a shape or dtype that differs, or a tensor that is not awaited.
  void feed(plan::Tensor tensor, const at::Tensor& value);

  /// Starts what can start and returns without waiting.
  void advance();

  /// Runs to the end. @throws InvalidArgument if an input was not fed; CommError as the
  /// communicator.
  void finish();

  /// An output, or a tensor that forward saves for backward. Requires finish().
  at::Tensor output(plan::Tensor tensor) const;
  at::Tensor saved(plan::Tensor tensor) const;

  /// This rank's share of the gradient of the sinks: the sum over the rows whose `delta` it makes,
  /// fp64, 0 for heads of others. The sum over the ranks is the gradient. Requires finish() of a
  /// backward pass with sinks.
  const at::Tensor& sinks_grad() const { return dsinks_H_; }

  /// Largest score of the pairs that this rank attended, for each of all query heads, in the
  /// accumulator dtype; -inf if none. Requires finish() and `max_logit`.
  const at::Tensor& max_logit() const { return max_logit_H_; }

  const Moved& moved() const { return moved_; }

 private:
  void allocate();
  bool start_ready();
  bool ready(const Batch& batch) const;
  void start(const Batch& batch);
  void start_messages(const Batch& batch);
  bool collect_done();
  void wait_for_any();
  bool finished() const;

  void compute(int op);
  void delta(int op, std::size_t segment);
  void finish_rows(int op, std::size_t segment);
  at::Tensor heads_of(const at::Tensor& x_H, const LocatedView& view) const;
  void attend(int op);
  void attend_grad(int op);
  at::Tensor part(int op, std::size_t operand, std::size_t segment) const;
  std::vector<comm::Strided> strided(int op) const;
  int tile_of(const std::vector<int>& role, plan::Tensor tensor) const;

  std::shared_ptr<const CompiledProgram> compiled_;
  comm::Communicator& comm_;
  ExecutionOptions options_;
  std::vector<at::Tensor> tiles_;                ///< Whole tiles, in their slots.
  std::vector<bool> awaited_;                    ///< By tile: the caller has not fed it yet.
  std::vector<bool> complete_;                   ///< By op.
  std::vector<std::size_t> next_;                ///< By lane: first batch that has not started.
  std::vector<const std::vector<int>*> flying_;  ///< Messages under way: their ops.
  std::vector<comm::Request> requests_;  ///< Theirs. After tiles_: dropped before the memory is.
  at::Tensor dsinks_H_;                  ///< Undefined without sinks.
  at::Tensor max_logit_H_;               ///< Undefined unless it was asked for.
  Moved moved_;
};

}  // namespace armillary::attention
