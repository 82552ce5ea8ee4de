// adapted_kernel.h: builds a Kernel from the attention of another library.
//
//   Kernel::attend --native_calls--> calls that the library takes --> merged, added to the carry
#pragma once

#include "armillary/kernel/native_attention.h"

namespace armillary::kernel {

/// A Kernel that fills in the abilities that `native` lacks (native_attention.h):
///
///   - a mask becomes several calls with masks that `native` takes (native_attention.h);
///   - without `carries`, the native result is a separate partial, which is merged;
///   - without `adds_gradients`, native gradients are separate tensors, which are added;
///   - without `takes_delta`, backward gets dout * delta / |dout|^2 in place of the output. Its
///     rowsum with dout is delta. Only delta travels between ranks, so the output is not there.
///
/// It computes plain scores only. The rules of Kernel hold if they hold for each call of `native`.
/// With Abilities::rounds partial results and gradients are rounded to the input dtype once per
/// call, so errors grow with the number of calls, and so with the size of a ring.
class AdaptedKernel : public Kernel {
 public:
  /// `native` must outlive it.
  explicit AdaptedKernel(const NativeAttention& native) : native_(native) {}

 private:
  std::shared_ptr<const Prepared> run_prepare(const Pairs& pairs) const override;
  void run_attend(const Pairs& pairs, const Inputs& inputs, Partial& carry) const override;
  void run_attend_grad(const Pairs& pairs, const Inputs& inputs, const OutputGrads& upstream,
                       InputGrads& grads) const override;

  const NativeAttention& native_;
};

}  // namespace armillary::kernel
