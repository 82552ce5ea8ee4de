// safetensors_test.cpp: safetensors files: every dtype and shape back and forth, the format to the
// byte, and files that are cut, edited or of another kind, each refused with the tensor or the
// offset.
#include "armillary/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/io/content_hash.h"

namespace armillary::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

template <class T>
std::span<const std::byte> bytes_of_values(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

class SafetensorsTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }

  void write(const std::vector<TensorBytes>& tensors, const TensorMetadata& metadata = {}) const {
    write_safetensors(real_file_system(), path_, tensors, metadata);
  }

  /// A file with this header as JSON and so many bytes of data.
  void write_raw(const std::string& json, std::size_t data_bytes) const {
    const std::uint64_t length = json.size();
    std::string front(8, '\0');
    std::memcpy(front.data(), &length, 8);
    std::ofstream(path_, std::ios::binary) << front << json << std::string(data_bytes, '\1');
  }

  std::string contents() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  template <class... Texts>
  void expect_refused(const Texts&... texts) const {
    EXPECT_THAT([&] { SafetensorsFile file(path_); },
                ThrowsMessage<IoError>(AllOf(HasSubstr(path_), HasSubstr(texts)...)));
  }

  const std::string path_ =
      (fs::temp_directory_path() / ("armillary_safetensors_test_" + std::to_string(getpid())))
          .string();
};

TEST_F(SafetensorsTest, GivesBackEveryDtypeAndShape) {
  const std::vector<float> floats{1.5F, -0.0F, std::numeric_limits<float>::infinity(), 4, 5, 6};
  const std::vector<std::int64_t> whole{std::numeric_limits<std::int64_t>::min()};
  const std::vector<double> doubles{0.1, 0.2};
  const std::vector<std::uint16_t> halves{1, 2, 3};
  const std::vector<std::uint8_t> small{7, 8, 9};
  write({{{"small", TensorDtype::U8, {3}}, bytes_of_values(small)},
         {{"half", TensorDtype::F16, {3, 1}}, bytes_of_values(halves)},
         {{"brain", TensorDtype::BF16, {1, 3}}, bytes_of_values(halves)},
         {{"\"na\xC3\xAFve\"", TensorDtype::F32, {2, 3}}, bytes_of_values(floats)},
         {{"scalar", TensorDtype::I64, {}}, bytes_of_values(whole)},
         {{"none", TensorDtype::F64, {4, 0}}, {}},
         {{"double", TensorDtype::F64, {2}}, bytes_of_values(doubles)}},
        {{"format", "pt"}, {"step", "20"}});
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.metadata(), (TensorMetadata{{"format", "pt"}, {"step", "20"}}));
  ASSERT_EQ(file.tensors().size(), 7U);
  const auto expect_values = [&](const std::string& name, std::span<const std::byte> values) {
    const auto read = file.bytes(name);
    EXPECT_TRUE(std::ranges::equal(read, values)) << name;
    EXPECT_EQ(file.offset(name) % bytes_of(file.info(name).dtype), 0) << name;
  };
  expect_values("small", bytes_of_values(small));
  expect_values("half", bytes_of_values(halves));
  expect_values("brain", bytes_of_values(halves));
  expect_values("\"na\xC3\xAFve\"", bytes_of_values(floats));
  expect_values("scalar", bytes_of_values(whole));
  expect_values("none", {});
  expect_values("double", bytes_of_values(doubles));
  EXPECT_EQ(file.info("brain").shape, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(file.info("scalar").shape, std::vector<std::int64_t>{});
  EXPECT_EQ(file.info("none").shape, (std::vector<std::int64_t>{4, 0}));
  EXPECT_THAT([&] { (void)file.bytes("other"); },
              ThrowsMessage<IoError>(HasSubstr("has no tensor 'other'")));
}

/// The bytes of the format, written down once by hand.
TEST_F(SafetensorsTest, IsTheFormatToTheByte) {
  const std::vector<float> values{1};
  write({{{"w", TensorDtype::F32, {1}}, bytes_of_values(values)}});
  const std::string json = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  ASSERT_EQ(json.size(), 54U);
  const std::string expected =
      std::string("\x38\0\0\0\0\0\0\0", 8) + json + "  " + std::string("\0\0\x80\x3F", 4);
  EXPECT_EQ(contents(), expected);
  EXPECT_EQ(SafetensorsFile(path_).header().size(), 64U);
  write({});
  EXPECT_TRUE(SafetensorsFile(path_).tensors().empty());
}

TEST_F(SafetensorsTest, EveryShorterFileIsRefused) {
  const std::vector<float> values{1, 2, 3};
  write({{{"a", TensorDtype::F32, {1}}, bytes_of_values(std::vector<float>{1})},
         {{"b", TensorDtype::F32, {3}}, bytes_of_values(values)}},
        {{"format", "pt"}});
  const std::string whole = contents();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    fs::resize_file(path_, size);
    EXPECT_THAT([&] { SafetensorsFile file(path_); }, ThrowsMessage<IoError>(HasSubstr(path_)))
        << size;
    std::ofstream(path_, std::ios::binary) << whole;
  }
  fs::resize_file(path_, whole.size() - 1);
  expect_refused("tensor 'b' ends at byte " + std::to_string(whole.size()),
                 "the file at byte " + std::to_string(whole.size() - 1));
  std::ofstream(path_, std::ios::binary) << whole << '\0';
  expect_refused("has 1 byte behind its last tensor, from byte " + std::to_string(whole.size()));
}

TEST_F(SafetensorsTest, HeadersThatAreWrongAreRefused) {
  const std::string w = R"("w":{"dtype":"F32","shape":[1],"data_offsets":)";
  write_raw("", 0);
  expect_refused("its header is no JSON at byte 9;");
  write_raw("[1]", 0);
  expect_refused("its header is no object at byte 8; {\"name\": ..} as JSON is required");
  write_raw(R"({"w":{"dtype":"F32")", 0);
  expect_refused("its header is no JSON at byte ");
  write_raw("{" + w + "[0,4]}," + w + "[0,4]}}", 4);
  expect_refused("its header has key 'w' twice in one object at byte 62;");
  write_raw(R"({"w":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4);
  expect_refused("tensor 'w' has dtype \"F33\"");
  write_raw(R"({"w":{"dtype":"F32","shape":[1]}})", 4);
  expect_refused("tensor 'w' has other fields");
  write_raw(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4);
  expect_refused("tensor 'w' has -1 in its shape");
  write_raw(R"({"w":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4);
  expect_refused("tensor 'w' has 1.0 in its shape");
  write_raw(R"({"w":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4);
  expect_refused("tensor 'w' has 9223372036854775808 in its shape");
  write_raw(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4);
  expect_refused("tensor 'w' at byte 82 has 4 bytes; more than 2^63");
  write_raw("{" + w + "[4,0]}}", 4);
  expect_refused("tensor 'w' has data_offsets [4,0]");
  write_raw("{" + w + "[0,8]}}", 8);
  expect_refused("tensor 'w' at byte 62 has 8 bytes; 4, those of its shape, are required");
  write_raw("{" + w + "[4,8]}}", 8);
  expect_refused("tensor 'w' begins at byte 66", "before it end at byte 62");
  const std::string v = R"("v":{"dtype":"F32","shape":[2],"data_offsets":)";
  write_raw("{" + w + "[0,4]}," + v + "[2,10]}}", 10);
  expect_refused("tensor 'v' begins at byte ", "without overlaps and gaps");
  write_raw(R"({"__metadata__":{"a":1}})", 0);
  expect_refused("'__metadata__' has 'a', which is no text");
}

TEST_F(SafetensorsTest, LengthsBeyondTheFileAreRefused) {
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{200'000'000}, std::numeric_limits<std::uint64_t>::max()}) {
    std::string bytes(10, '{');
    std::memcpy(bytes.data(), &length, 8);
    std::ofstream(path_, std::ios::binary) << bytes;
    expect_refused("has a header of " + std::to_string(length) + " bytes at byte 8",
                   "the file ends at byte 10");
  }
}

TEST_F(SafetensorsTest, PathsThatAreNoFilesAreRefused) {
  EXPECT_THAT([] { SafetensorsFile file("/nowhere/x"); },
              ThrowsMessage<IoError>("safetensors: '/nowhere/x' does not exist; a readable file is "
                                     "required"));
  EXPECT_THAT([] { SafetensorsFile file("/tmp"); },
              ThrowsMessage<IoError>(HasSubstr("'/tmp' is a folder; a readable file is required")));
}

TEST_F(SafetensorsTest, TensorsThatCannotBeWrittenAreRefused) {
  const std::vector<float> values{1};
  const TensorBytes one{{"w", TensorDtype::F32, {1}}, bytes_of_values(values)};
  EXPECT_THAT(
      [&] {
        write({one, one});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("name 'w' is taken")));
  EXPECT_THAT(
      [&] {
        write({{{"__metadata__", TensorDtype::F32, {1}}, one.bytes}});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("name '__metadata__' is taken")));
  EXPECT_THAT(
      [&] {
        write({{{"w", TensorDtype::F32, {2}}, one.bytes}});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("tensor 'w' of 4 bytes; 8")));
  EXPECT_THAT(
      [&] {
        write({{{"\xFF", TensorDtype::F32, {1}}, one.bytes}});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("not UTF-8")));
}

// Values of the reference implementation: xxhsum -H2 of the same bytes.
TEST(ContentHash, IsXxh3OfTheBytes) {
  EXPECT_EQ(content_hash(std::string_view()), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(content_hash(std::string_view("a")), content_hash(std::string_view("b")));
  EXPECT_EQ(content_hash(std::string_view("a")).size(), 32U);
}

}  // namespace
}  // namespace armillary::io
