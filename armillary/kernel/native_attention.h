// native_attention.h: the attention function of another library, which states its abilities.
//
//   Pairs --native_calls--> NativeCall: rows, simple mask --> NativeAttention::forward, backward
//
// A native attention can do less than a Kernel. AdaptedKernel (adapted_kernel.h) builds a Kernel
// from it. Letters of shapes are those of block_attention.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "armillary/kernel/block_attention.h"

namespace armillary::kernel {

/// Abilities of a NativeAttention beyond calls in which every query sees every key.
struct Abilities {
  /// Forward merges into a partial over earlier keys. Otherwise it writes a partial over its keys.
  bool carries = false;
  /// Backward adds to gradients in the accumulator dtype. Otherwise it writes its own gradients.
  bool adds_gradients = false;
  bool takes_delta = false;  ///< backward reads delta; otherwise it reads the output
  /// Results that are written, not merged or added, have the input dtype (lse: accumulator).
  bool rounds = false;
  bool causal = false;  ///< takes NativeMask::Causal
  bool window = false;  ///< takes NativeMask::Window
  bool varlen = false;  ///< takes several calls at once, over disjoint rows
};

/// Visible keys in a call of m queries and n keys, whose last query and last key are aligned.
enum class NativeMask : std::uint8_t {
  Full,
  Causal,  ///< query i sees key j if j - n <= i - m
  Window,  ///< as Causal, and only if j - n > i - m - window
};

/// `count` rows of a tensor: first, first + step, ... A negative step reads backwards.
struct NativeRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;
  bool operator==(const NativeRows&) const = default;
};

/// Some query rows against some key rows, under one simple mask.
struct NativeCall {
  NativeRows q;
  NativeRows k;
  NativeMask mask = NativeMask::Full;
  std::int64_t window = 0;  ///< most keys that a query sees, for NativeMask::Window
};

/// Cuts the visible pairs into calls that a library of these abilities takes, each pair in exactly
/// one call. The calls of an inner list can be given to the library at once.
///
/// Runs of one step need a few calls for each pair of runs and band. A mask that the library does
/// not take is cut further: a window into triangles and rectangles, a triangle into rectangles.
/// Cost: O(1) for each band of each pair of evenly spaced rows, and for each call.
std::vector<std::vector<NativeCall>> native_calls(const Pairs& pairs, const Abilities& can);

/// The attention of one library. Threads: as for Kernel.
class NativeAttention {
 public:
  virtual ~NativeAttention() = default;

  /// Constant during the life of the object.
  virtual Abilities abilities() const = 0;

  /// The rows of one call: views with any strides, in which the query heads of each KV head are
  /// neighbours, in order of KV heads. Every KV head has the same number of query heads.
  struct Part {
    NativeMask mask = NativeMask::Full;
    std::int64_t window = 0;
    at::Tensor q_BLHD;
    at::Tensor k_BLGD;
    at::Tensor v_BLGE;
  };
  /// Upstream gradient of one call, and the finished forward pass of its queries.
  struct Upstream {
    at::Tensor dout_BLHE;
    at::Tensor lse_BLH;    ///< over all keys of a query; natural logarithm, accumulator dtype
    at::Tensor delta_BLH;  ///< with Abilities::takes_delta; otherwise undefined
    at::Tensor out_BLHE;   ///< without takes_delta; input dtype, rowsum(dout * out) is delta
  };

  /// Computes the calls `parts` (exactly one without Abilities::varlen). Writes `partials`, which
  /// have memory: out in the accumulator dtype or, with Abilities::rounds, in the input dtype. With
  /// Abilities::carries it merges into them instead.
  virtual void forward(const std::vector<Part>& parts, double scale,
                       std::vector<Partial>& partials) const = 0;

  /// Writes the gradients of each part or, with Abilities::adds_gradients, adds to them.
  virtual void backward(const std::vector<Part>& parts, double scale,
                        const std::vector<Upstream>& upstream,
                        std::vector<InputGrads>& grads) const = 0;
};

}  // namespace armillary::kernel
