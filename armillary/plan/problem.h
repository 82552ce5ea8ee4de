// problem.h: the attention problem to solve, as pure numbers; see attention/ for the tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "armillary/plan/layout.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/plan/program/dtype.h"
#include "armillary/plan/program/program.h"

namespace armillary::plan {

/// The largest world that can be planned.
inline constexpr int kMaxWorld = 1 << 14;

/// Element type in which sums over part of the pairs travel: partial outputs, and dQ, dK, dV on the
/// way to their owners. Sums are made in the accumulator either way, and log-sum-exps always travel
/// in it.
enum class TransferDtype : std::uint8_t { Accumulator, Input };
/// The names are `accumulator`, `input`.
std::string to_string(TransferDtype transfer_dtype);
/// @throws InvalidArgument with the nearest name.
TransferDtype parse_transfer_dtype(std::string_view text);

/// One softmax attention spread over `world` ranks. Query head h reads KV head
/// h / (heads / kv_heads). Lengths are those of the mask.
struct Problem {
  int world = 1;
  std::int64_t batch = 1;
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;         ///< Elements per token and head of Q and K.
  int value_dim = 64;        ///< Elements per token and head of V and the output.
  Dtype dtype = Dtype::F32;  ///< Element type of Q, K, V and the results.
  Mask mask{};
  Layout layout{};
  /// Also returns the log-sum-exp to the owner of the queries (accumulator dtype, natural log). It
  /// moves more bytes only in strategies that trade heads for tokens (u > 1).
  bool return_lse = false;
  TransferDtype transfer_dtype = TransferDtype::Accumulator;
  bool operator==(const Problem&) const = default;

  /// Query heads per KV head.
  int group_size() const { return heads / kv_heads; }
  /// True if sums travel in fewer bytes than they are made in.
  bool narrows_sums() const {
    return transfer_dtype == TransferDtype::Input && bytes_of(dtype) < bytes_of(accumulator(dtype));
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
