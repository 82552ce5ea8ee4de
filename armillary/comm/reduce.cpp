// Reduction of arrays, chunk by chunk: the accumulators of a chunk stay in the L1 cache while all
// addends are added to it in order. One template serves all dtypes and both reductions.
#include "armillary/comm/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "armillary/core/error.h"
#include "armillary/core/half_floats.h"

namespace armillary::comm {
namespace {

constexpr std::int64_t kChunk = 1024;  ///< Elements whose accumulators stay in the L1 cache.

/// The type in which elements of type T are added and compared: fp32 for 16-bit floats, else T.
template <class T>
struct AccumulatorOf {
  using Type = std::conditional_t<sizeof(T) == 2, float, T>;
};

/// Integers are added as unsigned, so that they wrap around.
template <class T>
T sum_of(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

/// The larger of both; NaN if one is NaN, because b <= a is false then and a != a finds a NaN in a.
template <class T>
T largest_of(T a, T b) {
  return b <= a || a != a ? a : b;
}

/// Element `i` of type T. Arrays need not be aligned.
template <class T>
T element(const std::byte* data, std::int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// T is the dtype of the addends, R that of the result.
template <class T, class R, class Combine>
void reduce_with(const Combine& combine, std::span<const Array> addends, const Array& result) {
  using Accumulator = typename AccumulatorOf<T>::Type;
  std::array<Accumulator, kChunk> sums;  // Not cleared: the first addend starts them.
  for (std::int64_t begin = 0; begin < result.count; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, result.count - begin);
    const auto at = [&](const Array& addend, std::int64_t i) {
      return static_cast<Accumulator>(element<T>(addend.data, begin + i));
    };
    for (std::int64_t i = 0; i < n; ++i) sums[i] = at(addends.front(), i);
    for (const Array& addend : addends.subspan(1)) {
      for (std::int64_t i = 0; i < n; ++i) sums[i] = combine(sums[i], at(addend, i));
    }
    // The only rounding of 16-bit floats.
    std::byte* const to = result.data + begin * static_cast<std::int64_t>(sizeof(R));
    for (std::int64_t i = 0; i < n; ++i) {
      const auto rounded = static_cast<R>(sums[i]);
      std::memcpy(to + i * static_cast<std::int64_t>(sizeof(R)), &rounded, sizeof(R));
    }
  }
}

template <class T, class R>
void reduce_to(Reduction reduction, std::span<const Array> addends, const Array& result) {
  using Accumulator = typename AccumulatorOf<T>::Type;
  // Objects with types of their own: functions of one type would share a loop that calls them.
  const auto sum = [](Accumulator a, Accumulator b) { return sum_of(a, b); };
  const auto largest = [](Accumulator a, Accumulator b) { return largest_of(a, b); };
  if (reduction == Reduction::Sum) {
    reduce_with<T, R>(sum, addends, result);
  } else {
    reduce_with<T, R>(largest, addends, result);
  }
}

template <class T>
void reduce_all(Reduction reduction, std::span<const Array> addends, const Array& result) {
  if (result.dtype == ElementType::Fp32) {
    reduce_to<T, typename AccumulatorOf<T>::Type>(reduction, addends, result);
  } else {
    reduce_to<T, T>(reduction, addends, result);
  }
}

}  // namespace

void reduce(Reduction reduction, std::span<const Array> addends, const Array& result) {
  switch (addends[0].dtype) {
    case ElementType::Int64:
      return reduce_all<std::int64_t>(reduction, addends, result);
    case ElementType::Bf16:
      return reduce_all<Bf16>(reduction, addends, result);
    case ElementType::Fp16:
      return reduce_all<Fp16>(reduction, addends, result);
    case ElementType::Fp32:
      return reduce_all<float>(reduction, addends, result);
    case ElementType::Fp64:
      return reduce_all<double>(reduction, addends, result);
    case ElementType::Byte:
      fail<InternalError>("reduce: bytes have no sum");
  }
}

}  // namespace armillary::comm
