// Sizes and copies of strided memory. A copy walks both sides at once, each with a cursor, and
// moves as many bytes at a time as both have left in their current rows.
#include "armillary/comm/strided.h"

#include <algorithm>
#include <cstring>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// A position in the memory of a message: a part, a row of it, and a byte of that row.
class Cursor {
 public:
  explicit Cursor(std::span<const Strided> parts) : parts_(parts) { skip_finished(); }

  /// The rest of the current row: its address and its bytes, which are 0 at the end of the message.
  std::byte* data() const { return parts_[0].data + row_ * parts_[0].stride_bytes + offset_; }
  std::int64_t bytes() const { return parts_.empty() ? 0 : parts_[0].row_bytes - offset_; }

  /// Requires bytes <= bytes().
  void advance(std::int64_t bytes) {
    offset_ += bytes;
    if (offset_ < parts_[0].row_bytes) return;
    offset_ = 0;
    ++row_;
    skip_finished();
  }

 private:
  /// Moves on from parts whose rows are all walked, and from parts without bytes.
  void skip_finished() {
    while (!parts_.empty() && (row_ == parts_[0].rows || parts_[0].row_bytes == 0)) {
      parts_ = parts_.subspan(1);
      row_ = 0;
    }
  }

  std::span<const Strided> parts_;
  std::int64_t row_ = 0;
  std::int64_t offset_ = 0;
};

}  // namespace

std::int64_t total_bytes(std::span<const Strided> parts) {
  std::int64_t total = 0;
  for (const Strided& part : parts) {
    const std::int64_t bytes = checked_product("total_bytes", {part.rows, part.row_bytes});
    if (__builtin_add_overflow(total, bytes, &total)) {
      fail<InvalidArgument>("total_bytes: the sum overflows; it must stay below 2^63");
    }
  }
  return total;
}

std::byte* one_row(std::span<const Strided> parts) {
  std::byte* begin = nullptr;
  for (const Strided& part : parts) {
    if (part.rows == 0 || part.row_bytes == 0) continue;
    const bool in_a_row = part.rows == 1 || part.stride_bytes == part.row_bytes;
    if (begin || !in_a_row) return nullptr;
    begin = part.data;
  }
  return begin;
}

void copy_strided(std::span<const Strided> from, std::span<const Strided> to) {
  Cursor source(from);
  Cursor target(to);
  while (const std::int64_t bytes = std::min(source.bytes(), target.bytes())) {
    std::memcpy(target.data(), source.data(), static_cast<std::size_t>(bytes));
    source.advance(bytes);
    target.advance(bytes);
  }
}

}  // namespace armillary::comm
