// The manifest as JSON. Its hash covers the text itself, not what the text means, so that any
// changed bit is noticed: a reader takes the end of fixed length off, and hashes the rest.
#include "armillary/train/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/json_text.h"
#include "armillary/core/user_text.h"
#include "armillary/io/content_hash.h"

namespace armillary::train {
namespace {

using Json = nlohmann::ordered_json;

/// Raised when a field changes its meaning; a reader takes only its own.
constexpr int kManifestVersion = 1;

/// The end of a manifest: its last field.
std::string ending_of(std::string_view body) {
  return fmt::format(",\"hash\":\"{}\"}}\n", io::content_hash(body));
}

Json json_of(const RunProgress& progress) {
  Json json{{"step", progress.step},
            {"sequences_read", progress.sequences_read},
            {"last_sequence", progress.last_sequence},
            {"vocab_size", progress.vocab_size}};
  if (!progress.data.empty()) json["data"] = progress.data;
  if (!progress.skipped.empty()) json["skipped"] = progress.skipped;
  if (!progress.recent.losses.empty()) {
    json["recent_losses"] = progress.recent.losses;
    json["recent_norms"] = progress.recent.norms;
  }
  return json;
}

Json json_of(const ManifestFile& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"front_bytes", file.front_bytes},
          {"front_hash", file.front_hash}};
}

Json json_of(const ManifestTensor& tensor) {
  return {{"name", tensor.info.name},    {"dtype", io::to_string(tensor.info.dtype)},
          {"shape", tensor.info.shape},  {"begin", tensor.range.begin},
          {"whole", tensor.range.whole}, {"file", tensor.file},
          {"hash", tensor.hash}};
}

/// JsonFields of the manifest at a path. Each throws IoError that names the field, if it is missing
/// or holds anything but what the manifest has there.
class JsonFields {
 public:
  JsonFields(const Json& json, const std::string& path) : json_(json), path_(path) {}

  [[noreturn]] void refuse(const char* key) const {
    fail<IoError>(
        "checkpoint: {} has no field '{}' of its kind; a manifest of format_version {} is required",
        excerpt(path_), key, kManifestVersion);
  }

  const Json& at(const char* key) const {
    const auto entry = json_.is_object() ? json_.find(key) : json_.end();
    if (!json_.is_object() || entry == json_.end()) refuse(key);
    return *entry;
  }
  bool has(const char* key) const { return json_.is_object() && json_.contains(key); }
  JsonFields object(const char* key) const { return {at(key), path_}; }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(key);
    return at(key).get<std::string>();
  }
  /// A number from 0 that fits.
  template <class Int = std::int64_t>
  Int number(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || !std::in_range<Int>(value.get<std::uint64_t>())) refuse(key);
    return value.get<Int>();
  }
  /// A name in the folder of the checkpoint, not a path that leads out of it.
  std::string file_name(const char* key) const {
    std::string name = text(key);
    if (name.empty() || name.find('/') != std::string::npos) refuse(key);
    return name;
  }
  std::vector<std::int64_t> numbers(const char* key) const {
    if (!at(key).is_array()) refuse(key);
    std::vector<std::int64_t> numbers;
    for (const Json& item : at(key)) {
      if (!item.is_number_unsigned() || !std::in_range<std::int64_t>(item.get<std::uint64_t>())) {
        refuse(key);
      }
      numbers.push_back(item.get<std::int64_t>());
    }
    return numbers;
  }
  std::vector<std::string> texts(const char* key) const {
    if (!at(key).is_array()) refuse(key);
    std::vector<std::string> texts;
    for (const Json& item : at(key)) {
      if (!item.is_string()) refuse(key);
      texts.push_back(item.get<std::string>());
    }
    return texts;
  }
  std::vector<double> reals(const char* key) const {
    if (!at(key).is_array()) refuse(key);
    std::vector<double> reals;
    for (const Json& item : at(key)) {
      if (!item.is_number()) refuse(key);
      reals.push_back(item.get<double>());
    }
    return reals;
  }
  std::vector<JsonFields> list(const char* key) const {
    if (!at(key).is_array()) refuse(key);
    std::vector<JsonFields> items;
    for (const Json& item : at(key)) items.emplace_back(item, path_);
    return items;
  }

 private:
  const Json& json_;
  const std::string& path_;
};

/// The range of a tensor; manifests of earlier versions have none, and whole tensors.
model::GlobalRange range_of(const JsonFields& tensor, const model::Shape& size) {
  model::GlobalRange range = model::whole_of(size);
  if (!tensor.has("begin")) return range;
  range.begin = tensor.numbers("begin");
  range.whole = tensor.numbers("whole");
  bool fits = range.begin.size() == size.size() && range.whole.size() == size.size();
  for (std::size_t dim = 0; fits && dim < size.size(); ++dim) {
    fits = range.begin[dim] <= range.whole[dim] && size[dim] <= range.whole[dim] - range.begin[dim];
  }
  if (!fits) tensor.refuse("begin");
  return range;
}

Manifest manifest_of(const JsonFields& fields) {
  Manifest manifest{.version = fields.text("version"), .world = fields.number<int>("world")};
  const JsonFields progress = fields.object("progress");
  manifest.progress = {.step = progress.number("step"),
                       .sequences_read = progress.number("sequences_read"),
                       .last_sequence = progress.text("last_sequence"),
                       .vocab_size = progress.number("vocab_size")};
  // Text has no identity, nor had manifests of earlier versions.
  if (progress.has("data")) manifest.progress.data = progress.texts("data");
  // Without a guard for spikes there are neither.
  if (progress.has("skipped")) manifest.progress.skipped = progress.numbers("skipped");
  if (progress.has("recent_losses")) {
    manifest.progress.recent = {.losses = progress.reals("recent_losses"),
                                .norms = progress.reals("recent_norms")};
  }
  for (const JsonFields& file : fields.list("files")) {
    manifest.files.push_back({.name = file.file_name("name"),
                              .bytes = file.number("bytes"),
                              .front_bytes = file.number("front_bytes"),
                              .front_hash = file.text("front_hash")});
  }
  for (const JsonFields& tensor : fields.list("tensors")) {
    ManifestTensor read{.info = {.name = tensor.text("name"), .shape = tensor.numbers("shape")},
                        .file = tensor.file_name("file"),
                        .hash = tensor.text("hash")};
    read.range = range_of(tensor, read.info.shape);
    // A dtype that is not known is told by the file that has the tensor.
    read.info.dtype = io::parse_tensor_dtype(tensor.text("dtype")).value_or(io::TensorDtype::U8);
    if (std::ranges::find(manifest.files, read.file, &ManifestFile::name) == manifest.files.end()) {
      tensor.refuse("file");
    }
    manifest.tensors.push_back(std::move(read));
  }
  return manifest;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  Json json = {{"format_version", kManifestVersion},
               {"version", manifest.version},
               {"world", manifest.world},
               {"progress", json_of(manifest.progress)},
               {"files", Json::array()},
               {"tensors", Json::array()}};
  for (const ManifestFile& file : manifest.files) json["files"].push_back(json_of(file));
  for (const ManifestTensor& tensor : manifest.tensors) json["tensors"].push_back(json_of(tensor));
  std::string text = json_text(json);
  text.pop_back();  // the brace that closes it
  return text + ending_of(text);
}

Manifest parse_manifest(const std::string& path, std::string_view text) {
  // The hash has a fixed length, so the ending of any body is as long as that of an empty one.
  const std::size_t ending = ending_of("").size();
  const std::string_view body = text.substr(0, text.size() - std::min(text.size(), ending));
  if (text.substr(body.size()) != ending_of(body)) {
    fail<IoError>(
        "checkpoint: {} is cut off or was changed: its {} do not end with their hash; the "
        "manifest as it was written is required",
        excerpt(path), count_of(text.size(), "byte"));
  }
  // The text is one that this program wrote, perhaps another version of it.
  const JsonRead read = read_json_text(text);
  if (read.fault) {
    fail<IoError>("checkpoint: {} {}; a manifest of format_version {} is required", excerpt(path),
                  to_string(*read.fault), kManifestVersion);
  }
  const JsonFields fields(read.value, path);
  const auto version = fields.number("format_version");
  if (version != kManifestVersion) {
    fail<IoError>("checkpoint: {} has format_version {}; {} is required", excerpt(path), version,
                  kManifestVersion);
  }
  return manifest_of(fields);
}

}  // namespace armillary::train
