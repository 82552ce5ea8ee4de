// problem.h: the attention problem to solve, as pure numbers; see attention/ for the tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "armillary/plan/layout.h"
#include "armillary/plan/mask.h"

namespace armillary::plan {

using Rank = int;  ///< Index in the sequence-parallel group, 0 <= rank < world.
/// The largest world that can be planned.
inline constexpr int kMaxWorld = 1 << 14;

/// Element type of Q, K, V and the results.
enum class Dtype : std::uint8_t { F64, F32, Bf16, F16 };

/// Bytes of one element: 8, 4, 2, 2.
std::int64_t bytes_of(Dtype dtype);
/// Element type of partial results and of sums of gradients: fp64 for fp64 inputs, otherwise fp32.
Dtype accumulator(Dtype dtype);
/// The names are `fp64`, `fp32`, `bf16`, `fp16`.
std::string to_string(Dtype dtype);
/// @throws InvalidArgument with the nearest name.
Dtype parse_dtype(std::string_view text);

/// Element type in which sums over part of the pairs travel: partial outputs, and dQ, dK, dV on the
/// way to their owners. Sums are made in the accumulator either way, and log-sum-exps always travel
/// in it.
enum class Wire : std::uint8_t { Accumulator, Input };
/// The names are `accumulator`, `input`.
std::string to_string(Wire wire);
/// @throws InvalidArgument with the nearest name.
Wire parse_wire(std::string_view text);

/// Half-open range of heads [begin, end): query heads or KV heads, depending on the tensor.
struct Heads {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
  bool contains(const Heads& other) const { return begin <= other.begin && other.end <= end; }
  bool operator==(const Heads&) const = default;
};

/// One softmax attention spread over `world` ranks. Query head h reads KV head
/// h / (heads / kv_heads). Lengths are those of the mask.
struct Problem {
  int world = 1;
  std::int64_t batch = 1;
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;   ///< Elements per token and head of Q and K.
  int value_dim = 64;  ///< Elements per token and head of V and the output.
  Dtype dtype = Dtype::F32;
  Mask mask{};
  Layout layout{};
  /// Also returns the log-sum-exp to the owner of the queries (accumulator dtype, natural log). It
  /// moves more bytes only in strategies that trade heads for tokens (u > 1).
  bool return_lse = false;
  Wire wire = Wire::Accumulator;
  bool operator==(const Problem&) const = default;

  /// Query heads per KV head.
  int group_size() const { return heads / kv_heads; }
  /// True if sums travel in fewer bytes than they are made in.
  bool narrows_sums() const {
    return wire == Wire::Input && bytes_of(dtype) < bytes_of(accumulator(dtype));
  }
};

/// Checks that the problem can be planned.
/// @throws InvalidArgument on sizes below 1 (lengths may be 0), a world above kMaxWorld, heads that
/// are no multiple of kv_heads (names the nearest), or sizes whose bytes or visible pairs reach
/// 2^62.
void validate(const Problem& problem);

/// The KV heads that the query heads read; with 4 query heads per KV head, 2-9 read 0-2. An empty
/// range gives an empty range.
Heads kv_heads_of(const Problem& problem, Heads q_heads);

}  // namespace armillary::plan
