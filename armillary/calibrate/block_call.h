// block_call.h: the kernel call of one op that attends, as the executor makes it. For the sources
// of this folder.
#pragma once

#include <memory>

#include "armillary/bench/attention_case.h"
#include "armillary/kernel/block_attention.h"
#include "armillary/plan/mask.h"
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

/// Calls with tensors of their own, for one rank. One thread calls.
class BlockCall {
 public:
  explicit BlockCall(const BlockShape& shape);
  BlockCall(const BlockCall&) = delete;
  BlockCall& operator=(const BlockCall&) = delete;

  /// One call. `init`: accumulators are written, else added to (Op::init_q, Op::init_kv).
  void run(plan::Pass pass, bool init);

  double flops(plan::Pass pass) const;              ///< 4 D or 10 D for each visible pair and head.
  double accumulator_bytes(plan::Pass pass) const;  ///< Read by a call that is not `init`.

 private:
  BlockShape shape_;
  plan::Mask mask_;
  kernel::Pairs pairs_;  ///< Points to the mask.
  kernel::Inputs inputs_;
  kernel::Partial carry_;
  kernel::OutputGrads upstream_;
  kernel::InputGrads grads_;
};

}  // namespace armillary::calibrate
