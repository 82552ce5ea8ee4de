// block_call.h: the kernel call of one op that attends, as the executor makes it. For the sources
// of this folder.
#pragma once

#include <memory>

#include "armillary/kernel/block_attention.h"
#include "armillary/lab/bench/attention_case.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/plan/plan.h"

namespace armillary::calibrate {

/// Shape of a block: as many queries as keys.
struct BlockShape {
  plan::Dtype dtype = plan::Dtype::F32;
  int head_dim = 64;
  int heads = 4;
  std::int64_t tokens = 512;
  bool causal = false;  ///< A mask over the block, else every pair is visible.
};

/// Flops of a call: 4 D or 10 D for each visible pair and head.
double flops_of(const BlockShape& shape, plan::Pass pass);
/// Bytes of accumulators that a call reads that is not `init`.
double accumulator_bytes(const BlockShape& shape, plan::Pass pass);

/// Calls with tensors of their own, for one rank. One thread calls.
class BlockCall {
 public:
  explicit BlockCall(const BlockShape& shape);
  BlockCall(const BlockCall&) = delete;
  BlockCall& operator=(const BlockCall&) = delete;

  /// One call. `init`: accumulators are written, else added to (Op::init_q, Op::init_kv).
  void run(plan::Pass pass, bool init);

 private:
  plan::Mask mask_;
  kernel::Pairs pairs_;  ///< Points to the mask.
  kernel::Inputs inputs_;
  kernel::Partial carry_;
  kernel::OutputGrads upstream_;
  kernel::InputGrads grads_;
};

}  // namespace armillary::calibrate
