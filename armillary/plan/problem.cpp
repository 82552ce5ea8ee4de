// Checks of problems, and the names of their enums. Planning and verification compute with sizes
// that passed validate(), so their products are checked for overflow here once.
#include "armillary/plan/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"

namespace armillary::plan {
namespace {

// Names, in the order of the enums.
constexpr std::array<std::string_view, 2> kTransferDtypeNames{"accumulator", "input"};

/// Refuses a size below 1.
void check_at_least_1(std::string_view name, std::int64_t size) {
  if (size < 1) {
    fail<InvalidArgument>("problem: {} {} given; at least 1 is required", name, size);
  }
}

/// Refuses heads that are no multiple of kv_heads, and names the nearest divisors of heads.
void check_kv_heads(int heads, int kv_heads) {
  if (heads % kv_heads == 0) return;
  // The largest divisor up to kv_heads and the smallest one above it.
  int below = 1;
  int above = heads;
  for (int i = 1; i <= heads / i; ++i) {
    if (heads % i != 0) continue;
    for (const int divisor : {i, heads / i}) {
      if (divisor <= kv_heads) {
        below = std::max(below, divisor);
      } else {
        above = std::min(above, divisor);
      }
    }
  }
  const std::string nearest = below < kv_heads && kv_heads < above
                                  ? fmt::format("{} or {}", below, above)
                                  : fmt::to_string(below);
  fail<InvalidArgument>(
      "problem: {} and {} given; heads that are a multiple of kv_heads are "
      "required; "
      "nearest kv_heads: {}",
      count_of(heads, "head"), count_of(kv_heads, "kv_head"), nearest);
}

/// Refuses sizes whose product is 2^62 or more, so that the sum of two such products fits in 63
/// bits.
void check_fits(std::string_view what, std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 2;  // Twice the product must stay below 2^63.
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      fail<InvalidArgument>("problem: {} = {}; a product below 2^62 is required", what,
                            fmt::join(factors, " x "));
    }
  }
}

}  // namespace

std::string to_string(TransferDtype transfer_dtype) {
  return std::string(kTransferDtypeNames[static_cast<std::size_t>(transfer_dtype)]);
}

TransferDtype parse_transfer_dtype(std::string_view text) {
  return static_cast<TransferDtype>(parse_choice("transfer dtype", text, kTransferDtypeNames));
}

void validate(const Problem& problem) {
  // Each size alone.
  if (problem.world < 1 || problem.world > kMaxWorld) {
    fail<InvalidArgument>("problem: world {} given; 1 to {} is required", problem.world, kMaxWorld);
  }
  check_at_least_1("batch", problem.batch);
  check_at_least_1("heads", problem.heads);
  check_at_least_1("kv_heads", problem.kv_heads);
  check_at_least_1("head_dim", problem.head_dim);
  check_at_least_1("value_dim", problem.value_dim);
  check_at_least_1("stripe", problem.layout.stripe);
  check_kv_heads(problem.heads, problem.kv_heads);
  // Their products: bytes of a tensor gathered by all ranks, and visible pairs of all heads.
  check_fits(
      "world x batch x heads x dim x tokens x bytes",
      {problem.world, problem.batch, problem.heads, std::max(problem.head_dim, problem.value_dim),
       std::max(problem.mask.q_len(), problem.mask.kv_len()), bytes_of(Dtype::F64)});
  check_fits("batch x heads x visible pairs", {problem.batch, problem.heads, problem.mask.area()});
}

// The last query head decides the end, so a range that begins or ends inside a group reads the
// whole KV head.
Heads kv_heads_of(const Problem& problem, Heads q_heads) {
  const int group = problem.group_size();
  const int begin = q_heads.begin / group;
  return {begin, q_heads.count() > 0 ? (q_heads.end - 1) / group + 1 : begin};
}

}  // namespace armillary::plan
