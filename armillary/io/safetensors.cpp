// Files of safetensors. Both directions keep the values where they are: the writer streams the
// spans of the caller, the reader gives spans of the mapped file. safetensors_header.cpp makes and
// parses the text of headers.
#include "armillary/io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/io/safetensors_header.h"

namespace armillary::io {
namespace {

// Values and the length are copied as they are in memory.
static_assert(std::endian::native == std::endian::little);

/// A dtype of the format.
struct DtypeRow {
  TensorDtype dtype;
  std::string_view name;
  std::int64_t bytes;
};

/// One row for each enumerator, in their order, so that row_of() is an index.
constexpr std::array kDtypes{
    DtypeRow{TensorDtype::Bool, "BOOL", 1},      DtypeRow{TensorDtype::U8, "U8", 1},
    DtypeRow{TensorDtype::I8, "I8", 1},          DtypeRow{TensorDtype::F8E5M2, "F8_E5M2", 1},
    DtypeRow{TensorDtype::F8E4M3, "F8_E4M3", 1}, DtypeRow{TensorDtype::I16, "I16", 2},
    DtypeRow{TensorDtype::U16, "U16", 2},        DtypeRow{TensorDtype::F16, "F16", 2},
    DtypeRow{TensorDtype::BF16, "BF16", 2},      DtypeRow{TensorDtype::I32, "I32", 4},
    DtypeRow{TensorDtype::U32, "U32", 4},        DtypeRow{TensorDtype::F32, "F32", 4},
    DtypeRow{TensorDtype::F64, "F64", 8},        DtypeRow{TensorDtype::I64, "I64", 8},
    DtypeRow{TensorDtype::U64, "U64", 8}};

const DtypeRow& row_of(TensorDtype dtype) {
  return kDtypes[static_cast<std::size_t>(dtype)];
}

/// Larger headers are refused, as the library of the format does.
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

void check_tensors(const std::vector<TensorBytes>& tensors) {
  std::set<std::string_view> names{"__metadata__"};
  for (const auto& [info, bytes] : tensors) {
    if (!names.insert(info.name).second) {
      fail<InvalidArgument>("safetensors: name {} is taken; a name of its own is required",
                            quote(info.name));
    }
    if (static_cast<std::int64_t>(bytes.size()) != info.bytes()) {
      fail<InvalidArgument>("safetensors: tensor {} of {}; {}, those of its shape, are required",
                            quote(info.name), count_of(bytes.size(), "byte"), info.bytes());
    }
  }
}

}  // namespace

std::string_view to_string(TensorDtype dtype) {
  return row_of(dtype).name;
}

std::optional<TensorDtype> parse_tensor_dtype(std::string_view name) {
  const auto* const row = std::ranges::find(kDtypes, name, &DtypeRow::name);
  if (row == kDtypes.end()) return std::nullopt;
  return row->dtype;
}

std::int64_t bytes_of(TensorDtype dtype) {
  return row_of(dtype).bytes;
}

std::int64_t TensorInfo::bytes() const {
  std::int64_t product = bytes_of(dtype);
  // Dims of 0 come first: beside one, no other dim is too large.
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  for (const std::int64_t dim : shape) product = checked_product("tensor", {product, dim});
  return product;
}

void write_safetensors(FileSystem& files, const std::string& path, std::vector<TensorBytes> tensors,
                       const TensorMetadata& metadata) {
  check_tensors(tensors);
  std::ranges::stable_sort(tensors, std::greater(),
                           [](const TensorBytes& tensor) { return bytes_of(tensor.info.dtype); });
  SafetensorsHeader header{.metadata = metadata};
  std::int64_t end = 0;
  for (const TensorBytes& tensor : tensors) {
    // Tensors follow one another: the format allows no gap, and the sort has made each aligned.
    const std::int64_t begin = end;
    end += tensor.info.bytes();
    header.tensors.push_back({.info = tensor.info, .begin = begin, .end = end});
  }
  // The length and the JSON are one write.
  const std::string json = header_text(header);
  const std::uint64_t length = json.size();
  std::string front(kLengthBytes, '\0');
  std::memcpy(front.data(), &length, sizeof length);
  front += json;
  // Values go from the caller's memory to the file, and are on the disk when sync() returns.
  const auto file = files.create(path);
  file->write(std::as_bytes(std::span(front)));
  for (const TensorBytes& tensor : tensors) file->write(tensor.bytes);
  file->sync();
}

SafetensorsFile::SafetensorsFile(std::string path)
    : path_(std::move(path)), file_("safetensors", path_) {
  read_header();
}

void SafetensorsFile::read_header() {
  const std::span<const std::byte> all = file_.bytes();
  std::uint64_t length = 0;
  if (all.size() < sizeof length) {
    fail<IoError>("safetensors: {} ends at byte {}; a header of at least 8 bytes is required",
                  excerpt(path_), all.size());
  }
  std::memcpy(&length, all.data(), sizeof length);
  // The length is compared before it is used: a damaged one may be any number.
  const std::uint64_t behind = all.size() - sizeof length;
  if (length > behind || length > kMostHeaderBytes) {
    fail<IoError>(
        "safetensors: {} has a header of {} bytes at byte 8, the file ends at byte {}; a "
        "header inside the file, of at most {} bytes, is required",
        excerpt(path_), length, all.size(), kMostHeaderBytes);
  }
  data_begin_ = kLengthBytes + static_cast<std::int64_t>(length);
  const std::string_view text(reinterpret_cast<const char*>(all.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  SafetensorsHeader header = parse_header(path_, text, static_cast<std::int64_t>(behind - length));
  metadata_ = std::move(header.metadata);
  // Places are by name, with offsets from the first byte of the file.
  for (PlacedTensor& tensor : header.tensors) {
    places_[tensor.info.name] = {tensors_.size(), data_begin_ + tensor.begin};
    tensors_.push_back(std::move(tensor.info));
  }
}

const SafetensorsFile::TensorPlace& SafetensorsFile::place(const std::string& name) const {
  const auto entry = places_.find(name);
  if (entry == places_.end()) {
    fail<IoError>("safetensors: {} has no tensor {}; a file with it is required", excerpt(path_),
                  quote(name));
  }
  return entry->second;
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  return tensors_[place(name).index];
}

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const TensorPlace& at = place(name);
  return file_.bytes().subspan(static_cast<std::size_t>(at.offset),
                               static_cast<std::size_t>(tensors_[at.index].bytes()));
}

std::int64_t SafetensorsFile::offset(const std::string& name) const {
  return place(name).offset;
}

std::span<const std::byte> SafetensorsFile::header() const {
  return file_.bytes().first(static_cast<std::size_t>(data_begin_));
}

}  // namespace armillary::io
