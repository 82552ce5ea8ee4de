// event_file.h: scalars of a run in the files that TensorBoard reads: records of a length, an Event
// as a protocol buffer, and checksums of both (tensorflow/core/util/event.proto, TFRecord).
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace armillary::io {

/// CRC-32C (Castagnoli, RFC 3720 B.4).
std::uint32_t crc32c(std::string_view bytes);

/// The record of an event: its length as 8 bytes, the masked CRC-32C of these, the event, and its
/// masked CRC-32C; numbers are little-endian.
std::string event_record(std::string_view event);

/// A number of a step under a name, such as "loss". Files hold it as fp32.
struct EventScalar {
  std::string_view tag;
  double value = 0;
};

/// One file of events. Each record is appended whole and flushed. Threads: one.
class EventFile {
 public:
  /// Begins a new file in the folder, beside those of earlier parts of the run, whose steps behind
  /// `steps_before` readers then drop. Missing folders are made. @throws IoError naming the path.
  EventFile(const std::string& folder, std::int64_t steps_before);

  const std::string& path() const { return path_; }

  /// Appends one event with these scalars. @throws Error naming the path if it cannot be written
  /// any more.
  void write(std::int64_t step, std::span<const EventScalar> scalars);

 private:
  void append(std::string_view event);

  std::string path_;
  std::ofstream stream_;
};

}  // namespace armillary::io
