// merge_rate.h: measures how fast partial results are merged and gradients added, beside the speed
// of memory, in one run.
//
//   sides, in GB/s of bytes read and written:
//     "cores"    only with several threads: two peaks over one (cores.h), no rate
//     "merge"    kernel::merge of two partials         reads both, writes one
//     "add"      kernel::add of two gradients          the same traffic
//     "loop"     a[i] += b[i] over plain memory        the same traffic
//     "memcpy"   of plain memory                       reads one, writes one
//
// The speed of memory is the larger of loop and memcpy. Tensors should be larger than the caches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/lab/bench/interleaved_timing.h"

namespace armillary::bench {

/// Partial results of fp32: output [1, tokens, heads, head_dim], log-sum-exp [1, tokens, heads].
struct MergeCase {
  std::int64_t tokens = 16384;  ///< With the other sizes, 64 MiB for an output.
  std::int64_t heads = 8;
  std::int64_t head_dim = 128;
  int threads = 1;  ///< Threads of every side.
};

/// A case with its tensors. One thread calls; the constructor sets its number of intra-op threads.
class MergeRate {
 public:
  /// Makes the tensors and checks a merge and an add against fp64. @throws InvalidArgument for
  /// sizes below 1; Error if a result is wrong.
  explicit MergeRate(const MergeCase& spec);
  ~MergeRate();

  const std::string& isa() const { return isa_; }  ///< Instruction set of the kernels.
  /// Bytes of one partial output: 4 tokens heads head_dim.
  std::int64_t tensor_bytes() const;
  double max_error() const { return max_error_; }  ///< Larger error of both (attention_case.h).
  std::vector<Side> sides();                       ///< They must not outlive this object.

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
  std::string isa_;
  double max_error_ = 0;
};

}  // namespace armillary::bench
