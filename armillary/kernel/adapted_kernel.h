// adapted_kernel.h: a Kernel made of what another library's attention can do.
#pragma once

#include "armillary/kernel/native_attention.h"

namespace armillary::kernel {

/// What `native` lacks is made of what it has: a mask of calls that it takes (native_calls.h), a
/// carry of a partial of its own that is merged, sums of gradients of its own gradients.
///
/// A native backward that reads the output is given dout * delta / |dout|^2, whose rowsum with dout
/// is delta: between ranks only delta travels. (Where dout is 0, so is delta.)
///
/// Plain scores only. Rules of Kernel (1), (2), (4), (5) and (6) hold if they do for each call of
/// `native`; (3) if it holds there. With Abilities::rounds partial results and gradients are
/// rounded to the input dtype once a call: errors then grow with the number of calls, and so with
/// the ring size.
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
