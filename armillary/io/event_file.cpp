// The few fields of event.proto and summary.proto that scalars need, written by hand: a library of
// protocol buffers would be larger than all the rest.
#include "armillary/io/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;

/// The remainders of all bytes by the reversed polynomial.
constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    table[byte] = crc;
  }
  return table;
}

/// As TFRecord stores a checksum: one of bytes that hold checksums would be weak.
std::uint32_t masked(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

void append_fixed(std::string& to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i) & 0xFF);
}

void append_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>((value & 0x7F) | 0x80);
  to += static_cast<char>(value);
}

/// How a value of a protocol buffer is stored.
enum class WireType : std::uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

void append_tag(std::string& to, int field, WireType type) {
  append_varint(to, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
}

void append_bytes(std::string& to, int field, std::string_view bytes) {
  append_tag(to, field, WireType::Bytes);
  append_varint(to, bytes.size());
  to += bytes;
}

// Fields of Event.
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;

/// The beginning of an event: seconds since 1970, and its step.
std::string event_of(std::int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  append_tag(event, kWallTime, WireType::Fixed64);
  append_fixed(event, std::bit_cast<std::uint64_t>(now.count()), 8);
  append_tag(event, kStep, WireType::Varint);
  append_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

/// A Summary.Value: its tag (1) and its simple_value (2).
std::string value_of(const EventScalar& scalar) {
  std::string value;
  append_bytes(value, 1, scalar.tag);
  append_tag(value, 2, WireType::Fixed32);
  append_fixed(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)), 4);
  return value;
}

/// A path that no file has. Readers take files in the order of their names, so it is behind those
/// of earlier parts of the run.
std::string free_path(const std::string& folder) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  for (int number = 0;; ++number) {
    std::string path = fmt::format("{}/events.out.tfevents.{:010}.{:06}.{}.{}", folder,
                                   seconds.count(), number, host.data(), getpid());
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) return path;
  }
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~crc;
}

std::string event_record(std::string_view event) {
  std::string record;
  append_fixed(record, event.size(), 8);
  append_fixed(record, masked(crc32c(record)), 4);
  record += event;
  append_fixed(record, masked(crc32c(event)), 4);
  return record;
}

EventFile::EventFile(const std::string& folder, std::int64_t steps_before) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    fail<IoError>("write: folder {} cannot be made ({}); a folder that can be written is required",
                  excerpt(folder), error.message());
  }
  path_ = free_path(folder);
  stream_.open(path_, std::ios::binary | std::ios::trunc);
  if (!stream_) {
    fail<IoError>("write: {} cannot be written ({}); a path that can be written is required",
                  excerpt(path_), std::strerror(errno));
  }
  std::string version = event_of(0);
  append_bytes(version, kFileVersion, "brain.Event:2");
  append(version);
  // A SessionLog with status (1) START (1): events of this step and later ones, in files before,
  // are of steps that are taken again.
  std::string start = event_of(steps_before + 1);
  append_bytes(start, kSessionLog, std::string_view("\x08\x01", 2));
  append(start);
}

void EventFile::write(std::int64_t step, std::span<const EventScalar> scalars) {
  std::string summary;
  for (const EventScalar& scalar : scalars) append_bytes(summary, 1, value_of(scalar));
  std::string event = event_of(step);
  append_bytes(event, kSummary, summary);
  append(event);
}

void EventFile::append(std::string_view event) {
  const std::string record = event_record(event);
  stream_.write(record.data(), static_cast<std::streamsize>(record.size()));
  // As JsonLines: the path was good when it was opened.
  if (!stream_.flush()) {
    fail<Error>("write: {} cannot be written any more ({})", excerpt(path_), std::strerror(errno));
  }
}

}  // namespace armillary::io
