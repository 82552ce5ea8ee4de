// pack_buffers.cpp: a list of free buffers. Its lock is not held while memory is allocated.
#include "armillary/comm/pack_buffers.h"

#include <utility>

namespace armillary::comm {

PackBuffers::Buffer PackBuffers::take(std::int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    // The last one given back is the likeliest to be in the caches.
    for (auto buffer = kept_.rbegin(); buffer != kept_.rend(); ++buffer) {
      // A buffer more than twice as large is left for the larger messages that it was made for.
      if (buffer->bytes < bytes || buffer->bytes > 2 * bytes) continue;
      Buffer result = std::move(*buffer);
      kept_.erase(std::next(buffer).base());
      bytes_kept_ -= result.bytes;
      return result;
    }
  }
  return {std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes)), bytes};
}

void PackBuffers::give_back(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  if (bytes_kept_ + buffer.bytes > kMostKept) return;
  bytes_kept_ += buffer.bytes;
  kept_.push_back(std::move(buffer));
}

}  // namespace armillary::comm
