// The manifest as JSON. Its hash covers the text itself, not what the text means, so that any
// changed bit is noticed: a reader takes the end of fixed length off, and hashes the rest.
#include "armillary/train/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "armillary/core/error.h"
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

Json json_of(const Progress& progress) {
  return {{"step", progress.step},
          {"sequences_read", progress.sequences_read},
          {"last_sequence", progress.last_sequence},
          {"vocab_size", progress.vocab_size}};
}

Json json_of(const ManifestFile& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"front_bytes", file.front_bytes},
          {"front_hash", file.front_hash}};
}

Json json_of(const ManifestTensor& tensor) {
  return {{"name", tensor.info.name},
          {"dtype", io::to_string(tensor.info.dtype)},
          {"shape", tensor.info.shape},
          {"file", tensor.file},
          {"hash", tensor.hash}};
}

/// @throws Json::exception if a field is missing or of another type.
Manifest manifest_of(const Json& json) {
  Manifest manifest;
  manifest.version = json.at("version");
  manifest.world = json.at("world");
  const Json& progress = json.at("progress");
  manifest.progress = {.step = progress.at("step"),
                       .sequences_read = progress.at("sequences_read"),
                       .last_sequence = progress.at("last_sequence"),
                       .vocab_size = progress.at("vocab_size")};
  for (const Json& file : json.at("files")) {
    manifest.files.push_back({.name = file.at("name"),
                              .bytes = file.at("bytes"),
                              .front_bytes = file.at("front_bytes"),
                              .front_hash = file.at("front_hash")});
  }
  for (const Json& tensor : json.at("tensors")) {
    ManifestTensor read{.info = {.name = tensor.at("name"), .shape = tensor.at("shape")},
                        .file = tensor.at("file"),
                        .hash = tensor.at("hash")};
    // A dtype that is not known is told by the file that has the tensor.
    const auto dtype = io::parse_tensor_dtype(tensor.at("dtype").get<std::string>());
    read.info.dtype = dtype.value_or(io::TensorDtype::U8);
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
  std::string text = json.dump();
  text.pop_back();  // the brace that closes it
  return text + ending_of(text);
}

Manifest parse_manifest(const std::string& path, std::string_view text) {
  // The hash has a fixed length, so the ending of any body is as long as that of an empty one.
  const std::size_t ending = ending_of("").size();
  const std::string_view body = text.substr(0, text.size() - std::min(text.size(), ending));
  if (text.substr(body.size()) != ending_of(body)) {
    fail<IoError>(
        "checkpoint: {} is cut off or was changed: its {} bytes do not end with their "
        "hash; the manifest as it was written is required",
        path, text.size());
  }
  // The text is one that this program wrote, perhaps another version of it.
  try {
    const Json json = Json::parse(text);
    const int version = json.at("format_version");
    if (version != kManifestVersion) {
      fail<IoError>("checkpoint: {} has format_version {}; {} is required", path, version,
                    kManifestVersion);
    }
    return manifest_of(json);
  } catch (const Json::exception& error) {
    fail<IoError>("checkpoint: {} lacks a field ({}); a manifest of format_version {} is required",
                  path, error.what(), kManifestVersion);
  }
}

}  // namespace armillary::train
