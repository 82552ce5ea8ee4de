// native_attention.h: an attention of a library or a vendor, which can do less than a Kernel, and
// says what. adapted_kernel.h makes a Kernel of it.
//
// Letters of shapes are those of block_attention.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "armillary/kernel/block_attention.h"

namespace armillary::kernel {

/// What a NativeAttention can do beside plain calls over all pairs.
struct Abilities {
  bool carries = false;  ///< Merges into a partial of earlier keys; else it writes one of its own.
  bool adds_gradients = false;  ///< Adds to gradients in accumulators; else it writes its own.
  bool takes_delta = false;     ///< Backward reads delta; else the output.
  bool rounds = false;  ///< What it neither merges nor adds is in the input dtype, but for lse.
  bool causal = false;  ///< Takes NativeMask::Causal.
  bool window = false;  ///< Takes NativeMask::Window.
  bool varlen = false;  ///< Takes several calls at once, whose rows are apart.
};

/// Which keys a query sees of a call of m queries and n keys, aligned at their ends.
enum class NativeMask : std::uint8_t {
  Full,
  Causal,  ///< Query i sees key j if j - n <= i - m.
  Window,  ///< And if j - n > i - m - window.
};

/// `count` rows of a tensor: first, first + step, ...; a negative step reads backwards.
struct NativeRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;
  bool operator==(const NativeRows&) const = default;
};

/// Some queries against some keys, under one mask.
struct NativeCall {
  NativeRows q;
  NativeRows k;
  NativeMask mask = NativeMask::Full;
  std::int64_t window = 0;  ///< Of NativeMask::Window: keys that a query sees at most.
};

/// The pairs that a mask shows, each once, as calls that `can` takes; those of one inner list can
/// be given at once. Runs of one step cost a few calls for each pair of runs and band; a mask that
/// is not taken natively is cut into those that are: a window into triangles, a triangle into
/// rectangles. Cost: a step for each band of each pair of evenly spaced rows, and for each call.
std::vector<std::vector<NativeCall>> native_calls(const Pairs& pairs, const Abilities& can);

/// One library. Threads: as of Kernel.
class NativeAttention {
 public:
  virtual ~NativeAttention() = default;
  virtual Abilities abilities() const = 0;

  /// The rows of one call: views of any strides, all query heads of each KV head in order. One
  /// entry for each call, one only without Abilities::varlen.
  struct Part {
    NativeMask mask = NativeMask::Full;
    std::int64_t window = 0;
    at::Tensor q_BLHD;
    at::Tensor k_BLGD;
    at::Tensor v_BLGE;
  };
  struct Upstream {
    at::Tensor dout_BLHE;
    at::Tensor lse_BLH;    ///< Of all keys of the queries, natural, accumulator.
    at::Tensor delta_BLH;  ///< With Abilities::takes_delta; else undefined.
    at::Tensor out_BLHE;   ///< Without it, input dtype: rowsum(dout * out) is delta.
  };

  /// Writes `partials`, which have memory: out in the accumulator or, with Abilities::rounds, in
  /// the input dtype; or merges into them with Abilities::carries.
  virtual void forward(const std::vector<Part>& parts, double scale,
                       std::vector<Partial>& partials) const = 0;
  /// Writes, or adds to, the gradients of each part.
  virtual void backward(const std::vector<Part>& parts, double scale,
                        const std::vector<Upstream>& upstream,
                        std::vector<InputGrads>& grads) const = 0;
};

}  // namespace armillary::kernel
