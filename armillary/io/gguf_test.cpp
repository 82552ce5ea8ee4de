// gguf_test.cpp: blocks against values computed by hand, the parts of a file, what is refused, and
// damaged bytes.
#include "armillary/io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/half_floats.h"
#include "armillary/io/run_files.h"
#include "armillary/io/testing/gguf_bytes.h"

namespace armillary::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string half(float x) {
  return bytes_of_number(Fp16(x).bits);
}

std::string repeated(std::size_t count, const std::function<int(int)>& byte) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(byte(static_cast<int>(i)));
  return bytes;
}

/// A file that is removed at the end.
class WrittenGguf {
 public:
  explicit WrittenGguf(const std::string& bytes)
      : path_((std::filesystem::temp_directory_path() /
               ("armillary_gguf_" + std::to_string(getpid()) + ".gguf"))
                  .string()) {
    write_file(path_, bytes);
  }
  WrittenGguf(const WrittenGguf&) = delete;
  WrittenGguf& operator=(const WrittenGguf&) = delete;
  ~WrittenGguf() { std::filesystem::remove(path_); }

  GgufFile open() const { return GgufFile(path_); }

 private:
  std::string path_;
};

/// All values of one block.
std::vector<float> block_values(GgufType type, const std::string& bytes) {
  const GgufBlock block = block_of(type);
  EXPECT_EQ(static_cast<std::int64_t>(bytes.size()), block.bytes);
  std::vector<float> values(static_cast<std::size_t>(block.values), NAN);
  dequantize_block(type, reinterpret_cast<const std::byte*>(bytes.data()), values.data());
  return values;
}

TEST(GgufBlocks, FloatsAreThemselves) {
  EXPECT_THAT(block_values(GgufType::F32, bytes_of_number(1.1F)), ElementsAre(1.1F));
  EXPECT_THAT(block_values(GgufType::F16, half(-0.25F)), ElementsAre(-0.25F));
  EXPECT_THAT(block_values(GgufType::BF16, bytes_of_number(Bf16(3.5F).bits)), ElementsAre(3.5F));
}

TEST(GgufBlocks, Q8HasSignedBytes) {
  const auto values =
      block_values(GgufType::Q8_0, half(0.5F) + repeated(32, [](int i) { return 16 * i - 128; }));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(values[i], 0.5F * static_cast<float>(16 * i - 128)) << i;
  // Bytes wrap at 128: value 16 is that of 16 * 16 - 128 = 128, which is -128.
  EXPECT_EQ(values[15], 56);
  EXPECT_EQ(values[16], -64);
}

TEST(GgufBlocks, Q4KeepsTheFirstHalfInLowBits) {
  // Byte i has i below and 15 - i above.
  const std::string nibbles = repeated(16, [](int i) { return i | (15 - i) << 4; });
  const auto zero = block_values(GgufType::Q4_0, half(2) + nibbles);
  const auto one = block_values(GgufType::Q4_1, half(2) + half(-1) + nibbles);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(zero[i], static_cast<float>(2 * (i - 8)));
    EXPECT_EQ(zero[i + 16], static_cast<float>(2 * (7 - i)));
    EXPECT_EQ(one[i], static_cast<float>(2 * i - 1));
    EXPECT_EQ(one[i + 16], static_cast<float>(2 * (15 - i) - 1));
  }
}

TEST(GgufBlocks, Q4KHasScalesAndMinimaOfSixBits) {
  // Scales 1, 2, 3, 4 and 53, 38, 23, 8; minima 5, 6, 7, 8 and 42, 27, 12, 61.
  constexpr std::array kScales{1, 2, 3, 4, 53, 38, 23, 8};
  constexpr std::array kMinima{5, 6, 7, 8, 42, 27, 12, 61};
  std::string packed;
  for (int j = 0; j < 4; ++j) packed += static_cast<char>(kScales[j] | kScales[j + 4] >> 4 << 6);
  for (int j = 0; j < 4; ++j) packed += static_cast<char>(kMinima[j] | kMinima[j + 4] >> 4 << 6);
  for (int j = 4; j < 8; ++j) {
    packed += static_cast<char>((kScales[j] & 15) | (kMinima[j] & 15) << 4);
  }
  const std::string block = half(0.5F) + half(0.25F) + packed +
                            repeated(128, [](int i) { return i % 16 | (15 - i % 16) << 4; });
  const auto values = block_values(GgufType::Q4_K, block);
  for (int i = 0; i < 256; ++i) {
    const int group = i / 32;
    const int q = group % 2 == 0 ? i % 16 : 15 - i % 16;
    EXPECT_EQ(values[i], 0.5F * static_cast<float>(kScales[group] * q) -
                             0.25F * static_cast<float>(kMinima[group]))
        << i;
  }
}

TEST(GgufBlocks, Q6KHasSixBitsInTwoPlaces) {
  const auto q_of = [](int i) { return (i * 37 + 11) % 64; };
  const auto scale_of = [](int group) { return 9 * group - 60; };
  std::string low;
  std::string high;
  for (int part = 0; part < 2; ++part) {
    for (int l = 0; l < 64; ++l) {  // values l and l + 64 share a byte
      low += static_cast<char>((q_of(128 * part + l) & 15) | (q_of(128 * part + l + 64) & 15) << 4);
    }
    for (int l = 0; l < 32; ++l) {
      int byte = 0;
      for (int quarter = 0; quarter < 4; ++quarter) {
        byte |= q_of(128 * part + 32 * quarter + l) >> 4 << 2 * quarter;
      }
      high += static_cast<char>(byte);
    }
  }
  const auto values =
      block_values(GgufType::Q6_K, low + high + repeated(16, scale_of) + half(0.125F));
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(values[i], 0.125F * static_cast<float>(scale_of(i / 16) * (q_of(i) - 32))) << i;
  }
}

/// A file with a key of every kind and tensors of two types.
GgufBytes small_gguf() {
  GgufBytes file;
  file.add_text("general.architecture", "llama");
  file.add_number("llama.block_count", 30);
  file.add_float("llama.rope.freq_base", 100000);
  file.add_key("a.bool", GgufKind::Bool, std::string(1, '\1'));
  file.add_key("a.negative", GgufKind::I16, bytes_of_number<std::int16_t>(-3));
  file.add_key("a.words", GgufKind::Array,
               bytes_of_number(std::uint32_t{8}) + bytes_of_number(std::uint64_t{3}) +
                   gguf_text("a") + gguf_text("") + gguf_text("bc"));
  file.add_key("a.numbers", GgufKind::Array,
               bytes_of_number(std::uint32_t{5}) + bytes_of_number(std::uint64_t{2}) +
                   bytes_of_number(std::int32_t{-7}) + bytes_of_number(std::int32_t{8}));
  file.add_floats("norm", {3}, {1, 2, 3});
  file.add_tensor("w", {2, 32}, 8,
                  half(1) + repeated(32, [](int i) { return i; }) + half(2) +
                      repeated(32, [](int i) { return -i; }));
  return file;
}

TEST(Gguf, HasItsMetadataAndAnyRangeOfItsTensors) {
  const WrittenGguf written(small_gguf().bytes());
  const GgufFile file = written.open();
  const auto& metadata = file.metadata();
  EXPECT_EQ(std::get<std::string>(metadata.at("general.architecture")), "llama");
  EXPECT_EQ(std::get<std::uint64_t>(metadata.at("llama.block_count")), 30U);
  EXPECT_EQ(std::get<double>(metadata.at("llama.rope.freq_base")), 100000.0);
  EXPECT_EQ(std::get<bool>(metadata.at("a.bool")), true);
  EXPECT_EQ(std::get<std::int64_t>(metadata.at("a.negative")), -3);
  EXPECT_THAT(std::get<GgufArray>(metadata.at("a.words")).texts(), ElementsAre("a", "", "bc"));
  EXPECT_THAT(std::get<GgufArray>(metadata.at("a.numbers")).numbers(), ElementsAre(-7, 8));

  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.find("v"), nullptr);
  EXPECT_THAT(file.find("w")->shape, ElementsAre(2, 32));
  for (const int begin : {0, 1, 30, 32, 40}) {
    for (const int count : {0, 1, 5, 24}) {
      std::vector<float> values(static_cast<std::size_t>(count));
      file.read("w", begin, values);
      for (int i = 0; i < count; ++i) {
        const int at = begin + i;
        EXPECT_EQ(values[i], at < 32 ? at : -2 * (at - 32)) << begin;
      }
    }
  }
}

void expect_refused(const GgufBytes& file, const std::string& text) {
  const WrittenGguf written(file.bytes());
  EXPECT_THAT([&] { written.open(); }, ThrowsMessage<IoError>(HasSubstr(text)));
}

TEST(Gguf, WhatItIsNotIsRefused) {
  const auto refused = [](const auto& change, const std::string& text) {
    GgufBytes file = small_gguf();
    change(file);
    expect_refused(file, text);
  };
  refused([](GgufBytes& file) { file.version = 1; }, "is of version 1; 2 or 3");
  refused([](GgufBytes& file) { file.add_number("llama.block_count", 1); },
          "has key 'llama.block_count' twice; once is required");
  refused([](GgufBytes& file) { file.add_key("a.k", static_cast<GgufKind>(13), ""); },
          "key 'a.k' is of kind 13 at byte ");
  refused(
      [](GgufBytes& file) {
        file.add_key("a.k", GgufKind::Array,
                     bytes_of_number(std::uint32_t{9}) + bytes_of_number(std::uint64_t{0}));
      },
      "key 'a.k' is an array of arrays");
  refused([](GgufBytes& file) { file.add_number("general.alignment", 24); },
          "general.alignment = 24; a power of two");
  refused([](GgufBytes& file) { file.add_tensor("x", {1}, 13, ""); },
          "tensor 'x' is Q5_K; F32, F16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K or BF16 is required");
  refused([](GgufBytes& file) { file.add_tensor("x", {1}, 99, ""); }, "tensor 'x' is type 99; ");
  refused(
      [](GgufBytes& file) {
        file.add_tensor("x", {2, 33}, 8, "");
      },
      "tensor 'x' has rows of 33; a multiple of 32, a block of Q8_0, is required");
  refused(
      [](GgufBytes& file) {
        file.add_tensor("x", {1, 1, 1, 1, 1}, 0, "");
      },
      "tensor 'x' has 5 dims; at most 4");
  refused(
      [](GgufBytes& file) {
        file.add_tensor("x", {1LL << 40, 1LL << 40}, 0, "");
      },
      "tensor 'x' has 2^62 bytes or more");
  refused([](GgufBytes& file) { file.add_floats("w", {1}, {1}); }, "has tensor 'w' twice");
  refused([](GgufBytes& file) { file.add_floats("x", {4}, {1}); }, "a file that ends with them");
  refused([](GgufBytes& file) { file.add_floats("x", {400}, {1}); }, "a file that is not cut off");
  refused([](GgufBytes& file) { file.data += std::string(100, 'x'); },
          "a file that ends with them is required");
  refused(
      [](GgufBytes& file) {
        file.data = std::string(64, 'x');
        file.add_floats("x", {1}, {1});
      },
      "tensor 'x' begins at byte 64 of the data; 128, behind those before it");
  const WrittenGguf text("not a gguf");
  EXPECT_THAT([&] { text.open(); }, ThrowsMessage<IoError>(HasSubstr("does not begin with GGUF")));
}

TEST(Gguf, EveryCutIsRefused) {
  const std::string whole = small_gguf().bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const WrittenGguf written(whole.substr(0, size));
    EXPECT_THROW(written.open(), IoError) << size;
  }
}

/// Damaged files are read or refused with one line.
TEST(Gguf, DamagedBytesEndInOneLine) {
  const std::string whole = small_gguf().bytes();
  std::mt19937_64 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    for (std::size_t change = 0; change <= below(4); ++change) {
      const std::size_t at = below(bytes.size());
      switch (below(3)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:  // a large number
          for (std::size_t i = at; i < std::min(at + 8, bytes.size()); ++i) bytes[i] = '\xff';
          break;
        default:
          bytes.erase(at, 1 + below(9));
      }
      if (bytes.empty()) bytes = whole;
    }
    const WrittenGguf written(bytes);
    try {
      const GgufFile file = written.open();
      for (const GgufTensor& tensor : file.tensors()) {
        std::int64_t count = 1;
        for (const std::int64_t size : tensor.shape) count *= size;
        std::vector<float> values(static_cast<std::size_t>(count));
        file.read(tensor.name, 0, values);
      }
      for (const auto& [key, value] : file.metadata()) EXPECT_FALSE(value_text(value).empty());
    } catch (const IoError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace armillary::io
