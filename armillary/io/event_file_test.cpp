// event_file_test.cpp: checksums of RFC 3720, records byte by byte, and files as a reader of
// protocol buffers takes them apart. tests/watch reads them with TensorBoard.
#include "armillary/io/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Crc32c, IsThatOfRfc3720) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
}

std::uint64_t little_endian_at(const std::string& bytes, std::size_t at, int size) {
  std::uint64_t number = 0;
  for (int i = 0; i < size; ++i) {
    number |= std::uint64_t{static_cast<unsigned char>(bytes.at(at + i))} << (8 * i);
  }
  return number;
}

std::uint32_t masked_crc(const std::string& bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

TEST(EventRecord, IsLengthEventAndTheirChecksums) {
  const std::string record = event_record("abc");
  ASSERT_EQ(record.size(), 8U + 4 + 3 + 4);
  EXPECT_EQ(little_endian_at(record, 0, 8), 3U);
  EXPECT_EQ(little_endian_at(record, 8, 4), masked_crc(record.substr(0, 8)));
  EXPECT_EQ(record.substr(12, 3), "abc");
  EXPECT_EQ(little_endian_at(record, 15, 4), masked_crc("abc"));
}

/// A field of a protocol buffer: a number, or bytes.
struct Field {
  int number = 0;
  std::uint64_t value = 0;
  std::string bytes;
};

std::uint64_t varint_at(const std::string& bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(at++));
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return value;
  }
}

std::vector<Field> fields_of(const std::string& message) {
  std::vector<Field> fields;
  for (std::size_t at = 0; at < message.size();) {
    const std::uint64_t tag = varint_at(message, at);
    Field field{.number = static_cast<int>(tag >> 3)};
    const auto fixed = tag & 7U;
    if (fixed == 0) {
      field.value = varint_at(message, at);
    } else if (fixed == 2) {
      const std::uint64_t size = varint_at(message, at);
      field.bytes = message.substr(at, size);
      at += size;
    } else {
      const int size = fixed == 1 ? 8 : 4;
      field.value = little_endian_at(message, at, size);
      at += static_cast<std::size_t>(size);
    }
    fields.push_back(field);
  }
  return fields;
}

/// The events of a file; every checksum is compared.
std::vector<std::vector<Field>> events_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  std::vector<std::vector<Field>> events;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t size = little_endian_at(bytes, at, 8);
    const std::string event = bytes.substr(at + 12, size);
    EXPECT_EQ(bytes.substr(at, size + 16), event_record(event));
    events.push_back(fields_of(event));
    at += size + 16;
  }
  return events;
}

class EventFileTest : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  const std::string folder_ = (fs::temp_directory_path() / "armillary_event_file_test").string();
};

TEST_F(EventFileTest, HasAVersionAStartAndTheScalars) {
  EventFile file(folder_ + "/a", 299);
  const std::array scalars{EventScalar{"loss", 2.5}, EventScalar{"memory/peak", -1}};
  file.write(300, scalars);
  const auto events = events_of(file.path());
  ASSERT_EQ(events.size(), 3U);
  for (const std::vector<Field>& event : events) {
    ASSERT_EQ(event.size(), 3U);
    EXPECT_EQ(event[0].number, 1);
    EXPECT_GT(std::bit_cast<double>(event[0].value), 1.7e9) << "seconds since 1970";
    EXPECT_EQ(event[1].number, 2);
  }
  EXPECT_EQ(events[0][2].number, 3);
  EXPECT_EQ(events[0][2].bytes, "brain.Event:2");
  EXPECT_EQ(events[1][1].value, 300U) << "the first step that is dropped of files before";
  EXPECT_EQ(events[1][2].number, 7);
  EXPECT_EQ(events[1][2].bytes, std::string("\x08\x01", 2));
  EXPECT_EQ(events[2][1].value, 300U);
  EXPECT_EQ(events[2][2].number, 5);
  const auto values = fields_of(events[2][2].bytes);
  ASSERT_EQ(values.size(), 2U);
  const auto first = fields_of(values[0].bytes);
  EXPECT_EQ(first.at(0).bytes, "loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(first.at(1).value)), 2.5F);
  EXPECT_EQ(fields_of(values[1].bytes).at(0).bytes, "memory/peak");
}

TEST_F(EventFileTest, EachPartOfARunHasItsOwnBehindThoseBefore) {
  std::vector<std::string> paths;
  paths.reserve(3);
  for (int i = 0; i < 3; ++i) paths.push_back(EventFile(folder_, i).path());
  EXPECT_TRUE(std::is_sorted(paths.begin(), paths.end()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3);
}

TEST_F(EventFileTest, AFileInTheWayIsRefused) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/taken") << "x";
  EXPECT_THAT([&] { EventFile file(folder_ + "/taken", 0); },
              ThrowsMessage<IoError>(HasSubstr("/taken cannot be made")));
}

}  // namespace
}  // namespace armillary::io
