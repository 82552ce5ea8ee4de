// merge_rate.h: how fast partials are merged and gradients added, beside the speed of memory.
//
//   sides, in GB/s of bytes read and written:
//     "merge"    kernel::merge of two partials         reads both, writes one
//     "add"      kernel::add of two gradients          the same traffic
//     "loop"     a[i] += b[i] over plain memory        the same traffic
//     "memcpy"   of plain memory                       reads one, writes one
//
// and with several threads "cores" (cores.h). The speed of memory is the larger of loop and memcpy.
// Tensors are meant to be larger than the caches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "armillary/bench/rounds.h"

namespace armillary::bench {

struct MergeCase {
  std::int64_t tokens = 16384;
  std::int64_t heads = 8;
  std::int64_t head_dim = 128;
  int threads = 1;
};

/// One thread calls; its intra-op threads are set.
class MergeRate {
 public:
  /// Makes everything and checks both against fp64. @throws InvalidArgument for sizes below 1;
  /// Error if a result is wrong.
  explicit MergeRate(const MergeCase& given);
  ~MergeRate();

  const std::string& isa() const { return isa_; }
  std::int64_t tensor_bytes() const;  ///< Of one partial output.
  double max_error() const { return max_error_; }
  std::vector<Side> sides();

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
  std::string isa_;
  double max_error_ = 0;
};

}  // namespace armillary::bench
