// problem.h: what to solve. Pure numbers; see attention/ for the tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "armillary/plan/layout.h"
#include "armillary/plan/mask.h"

namespace armillary::plan {

using Rank = int;  ///< Index in the sequence-parallel group, 0 <= rank < world.
inline constexpr int kMaxWorld = 1 << 14;

enum class Dtype : std::uint8_t { F64, F32, Bf16, F16 };

std::int64_t bytes_of(Dtype dtype);
/// Accumulators of partials and gradients: fp64 for fp64 inputs, else fp32.
Dtype accumulator(Dtype dtype);
/// `fp64`, `fp32`, `bf16`, `fp16`.
std::string to_string(Dtype dtype);
/// @throws InvalidArgument with the nearest name.
Dtype parse_dtype(std::string_view text);

/// dtype in which sums over part of the pairs travel: partial outputs, and dQ, dK, dV on their way
/// home. They are summed in the accumulator either way, and log-sum-exps always travel in it.
enum class Wire : std::uint8_t { Accumulator, Input };
std::string to_string(Wire wire);  ///< `accumulator`, `input`.
/// @throws InvalidArgument with the nearest name.
Wire parse_wire(std::string_view text);

/// Half-open range of heads [begin, end): query heads or KV heads, by the tensor it belongs to.
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
  int head_dim = 64;   ///< Of Q and K.
  int value_dim = 64;  ///< Of V and the output.
  Dtype dtype = Dtype::F32;
  Mask mask{};
  Layout layout{};
  /// Also bring the log-sum-exp home to the owner of the queries (fp32, natural log). Moves more
  /// bytes only where heads are traded for tokens (u > 1).
  bool return_lse = false;
  Wire wire = Wire::Accumulator;
  bool operator==(const Problem&) const = default;

  int group_size() const { return heads / kv_heads; }
  /// Do sums travel in fewer bytes than they are made in?
  bool narrows_sums() const {
    return wire == Wire::Input && bytes_of(dtype) < bytes_of(accumulator(dtype));
  }
};

/// @throws InvalidArgument on sizes below 1 (lengths may be 0), a world above kMaxWorld, heads that
/// are no multiple of kv_heads (names the nearest), or sizes whose bytes or visible pairs reach
/// 2^62.
void validate(const Problem& problem);

/// KV heads that the query heads touch. None for no heads.
Heads kv_heads_of(const Problem& problem, Heads q_heads);

}  // namespace armillary::plan
