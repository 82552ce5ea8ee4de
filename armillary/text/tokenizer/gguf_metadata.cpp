// gguf_metadata.cpp: every length is compared with what is left of the file before it is used, so a
// file of wrong numbers is refused where it is wrong, whatever it claims to have.
#include "armillary/text/tokenizer/gguf_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::tokenizer {
namespace {

enum MetadataType : std::uint32_t {
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  F32,
  Bool,
  Text,
  Array,
  U64,
  I64,
  F64,
  MetadataTypes
};
/// Bytes of a value; 0: it says so itself.
constexpr std::array<std::uint64_t, MetadataTypes> kTypeBytes{1, 1, 2, 2, 4, 4, 4,
                                                              1, 0, 0, 8, 8, 8};
constexpr std::uint64_t kMostKeys = 1 << 16;

template <class Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number{};
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

/// The integer of a type at an offset; nothing if the type is none, or it does not fit.
std::optional<std::int64_t> integer_at(std::uint32_t type, std::string_view bytes, std::size_t at) {
  switch (type) {
    case U8:
      return number_at<std::uint8_t>(bytes, at);
    case I8:
      return number_at<std::int8_t>(bytes, at);
    case U16:
      return number_at<std::uint16_t>(bytes, at);
    case I16:
      return number_at<std::int16_t>(bytes, at);
    case U32:
      return number_at<std::uint32_t>(bytes, at);
    case I32:
      return number_at<std::int32_t>(bytes, at);
    case I64:
      return number_at<std::int64_t>(bytes, at);
    case U64: {
      const auto number = number_at<std::uint64_t>(bytes, at);
      if (number > INT64_MAX) return std::nullopt;
      return static_cast<std::int64_t>(number);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

GgufMetadata::GgufMetadata(std::span<const std::byte> file, std::string origin)
    : origin_(std::move(origin)),
      rest_(reinterpret_cast<const char*>(file.data()), file.size()),
      size_(file.size()) {
  if (take(4) != "GGUF") refuse("begins with other bytes than GGUF");
  const auto version = take_number<std::uint32_t>();
  if (version != 2 && version != 3) {
    refuse(fmt::format("is of version {}, not 2 or 3, or big-endian", version));
  }
  take_number<std::uint64_t>();  // Tensors, which are behind the keys.
  const auto keys = take_number<std::uint64_t>();
  if (keys > kMostKeys) refuse(fmt::format("claims to have {} keys", keys));
  for (std::uint64_t i = 0; i < keys; ++i) {
    std::string key(take_text());
    GgufValue value;
    value.type = take_number<std::uint32_t>();
    const std::string_view begin = rest_;
    if (value.type == Array) {
      value.element = take_number<std::uint32_t>();
      value.count = take_number<std::uint64_t>();
      if (value.element == Array) refuse(fmt::format("has arrays in the array {}", quote(key)));
      const std::string_view elements = rest_;
      skip_values(value.element, value.count);
      value.bytes = elements.substr(0, elements.size() - rest_.size());
    } else {
      skip_values(value.type, 1);
      value.bytes = begin.substr(0, begin.size() - rest_.size());
    }
    const bool is_new = values_.try_emplace(key, value).second;
    if (!is_new) refuse(fmt::format("has key {} twice", quote(key)));
  }
}

std::string_view GgufMetadata::take(std::uint64_t count) {
  if (count > rest_.size()) {
    refuse(fmt::format("ends at byte {}, before the {} bytes that byte {} begins", size_, count,
                       size_ - rest_.size()));
  }
  const std::string_view bytes = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return bytes;
}

template <class Number>
Number GgufMetadata::take_number() {
  return number_at<Number>(take(sizeof(Number)), 0);
}

std::string_view GgufMetadata::take_text() {
  return take(take_number<std::uint64_t>());
}

void GgufMetadata::skip_values(std::uint32_t type, std::uint64_t count) {
  if (type >= MetadataTypes) refuse(fmt::format("has a value of the unknown type {}", type));
  if (type == Text) {
    // Each takes 8 bytes at least.
    if (count > rest_.size() / 8) take(rest_.size() + 1);
    for (std::uint64_t i = 0; i < count; ++i) take_text();
    return;
  }
  const std::uint64_t bytes = kTypeBytes[type];
  if (count > rest_.size() / bytes) take(rest_.size() + 1);
  take(bytes * count);
}

std::optional<std::string_view> GgufMetadata::text(const std::string& key) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return std::nullopt;
  if (place->second.type != Text) refuse_value(key, "a text");
  return place->second.bytes.substr(8);
}

std::optional<std::int64_t> GgufMetadata::integer(const std::string& key) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return std::nullopt;
  const auto value = integer_at(place->second.type, place->second.bytes, 0);
  if (!value) refuse_value(key, "an integer below 2^63");
  return value;
}

std::optional<bool> GgufMetadata::boolean(const std::string& key) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return std::nullopt;
  if (place->second.type != Bool) refuse_value(key, "true or false");
  return place->second.bytes.front() != 0;
}

const GgufMetadata::GgufValue* GgufMetadata::array(const std::string& key,
                                                   std::span<const std::uint32_t> types) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return nullptr;
  const GgufValue& value = place->second;
  const bool fits = value.type == Array && std::ranges::find(types, value.element) != types.end();
  if (!fits) refuse_value(key, "an array of the type of the format");
  return &value;
}

std::vector<std::string_view> GgufMetadata::texts(const std::string& key) const {
  constexpr std::array<std::uint32_t, 1> kTypes{Text};
  const GgufValue* const value = array(key, kTypes);
  std::vector<std::string_view> all;
  std::string_view rest = value == nullptr ? std::string_view() : value->bytes;
  while (!rest.empty()) {
    const auto length = number_at<std::uint64_t>(rest, 0);
    all.push_back(rest.substr(8, length));
    rest.remove_prefix(8 + length);
  }
  return all;
}

std::vector<std::int64_t> GgufMetadata::integers(const std::string& key) const {
  constexpr std::array<std::uint32_t, 6> kTypes{U8, I8, U16, I16, U32, I32};
  const GgufValue* const value = array(key, kTypes);
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; value != nullptr && i < value->count; ++i) {
    all.push_back(*integer_at(value->element, value->bytes, i * kTypeBytes[value->element]));
  }
  return all;
}

std::vector<float> GgufMetadata::floats(const std::string& key) const {
  constexpr std::array<std::uint32_t, 1> kTypes{F32};
  const GgufValue* const value = array(key, kTypes);
  std::vector<float> all;
  for (std::size_t i = 0; value != nullptr && i < value->count; ++i) {
    all.push_back(number_at<float>(value->bytes, i * sizeof(float)));
  }
  return all;
}

std::string GgufMetadata::bytes_of(std::string_view prefix) const {
  std::string bytes;
  for (const auto& [key, value] : values_) {
    if (key.starts_with(prefix)) bytes += fmt::format("{} {} ", key, value.type) += value.bytes;
  }
  return bytes;
}

void GgufMetadata::refuse(const std::string& fault) const {
  fail<InvalidArgument>("gguf: '{}' {}; a GGUF file of version 2 or 3 is required",
                        excerpt(origin_), fault);
}

void GgufMetadata::refuse_value(const std::string& key, std::string_view requirement) const {
  fail<InvalidArgument>("gguf: key {} of '{}' has another type; {} is required", quote(key),
                        excerpt(origin_), requirement);
}

}  // namespace armillary::tokenizer
