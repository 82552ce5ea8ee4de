// pack_buffers.h: memory for messages that are packed. Internal to engines of processes.
//
// New memory of a large buffer costs a page fault per 4 KiB, as much as the copy into it, so
// buffers are kept for later messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace armillary::comm {

/// The buffers of one rank of a group. Functions may be called from any thread.
class PackBuffers {
 public:
  /// Memory of `bytes` bytes, without a value. `bytes` is 0 if there is no buffer.
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    std::int64_t bytes = 0;
  };

  /// A buffer of at least `bytes`: a kept one, if it is not twice as large, or a new one.
  Buffer take(std::int64_t bytes);
  /// Keeps the buffer, or frees it if kMostKept bytes are kept already.
  void give_back(Buffer buffer);

 private:
  static constexpr std::int64_t kMostKept = std::int64_t{1} << 28;

  std::mutex mutex_;
  std::vector<Buffer> kept_;
  std::int64_t bytes_kept_ = 0;
};

}  // namespace armillary::comm
