// manifest.h: the list of everything in a checkpoint, written last: a folder without it is no
// checkpoint. docs/checkpoints.md has the format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/io/safetensors.h"
#include "armillary/model/global_range.h"
#include "armillary/train/spike_guard.h"

namespace armillary::train {

/// How far a run has come.
struct RunProgress {
  std::int64_t step = 0;                   ///< Optimizer steps taken; the next one is step + 1.
  std::int64_t sequences_read = 0;         ///< The next sequence of the data has this number.
  std::string last_sequence;               ///< hash_of (checkpoint.h) of the sequence before it.
  std::int64_t vocab_size = 0;             ///< That of the data.
  std::vector<std::string> data = {};      ///< Data::identity().
  std::vector<std::int64_t> skipped = {};  ///< Batches that are left out, ascending (BatchOrder).
  RecentSteps recent = {};                 ///< Nothing without a guard for spikes.

  bool operator==(const RunProgress&) const = default;
};

/// A file of a checkpoint, as it must be found. Its front is a safetensors header, whose data is in
/// the list of tensors, or the whole file.
struct ManifestFile {
  std::string name;  ///< Without the folder.
  /// Size of the file: one that was cut off is refused before it is read.
  std::int64_t bytes = 0;
  std::int64_t front_bytes = 0;
  std::string front_hash;  ///< io::content_hash of the first `front_bytes` bytes.

  bool operator==(const ManifestFile&) const = default;
};

/// A tensor or a shard of it, the file that has it and the hash of its values; its place is in the
/// header of the file.
struct ManifestTensor {
  io::TensorInfo info;
  /// Indices of the whole tensor that it has; sizes are those of `info`.
  model::GlobalRange range;
  std::string file;  ///< Name of the file that has it.
  std::string hash;  ///< io::content_hash of its bytes.
};

/// Everything in a checkpoint but the manifest itself. Tensors are listed in the order of the state
/// (state_of in restore.h), whichever rank wrote them.
struct Manifest {
  std::string version;  ///< Version of the library that wrote it.
  int world = 0;        ///< Ranks that wrote it.
  RunProgress progress;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

/// Files of every checkpoint, besides the parts.
/// JSON, and the only file that makes a folder a checkpoint.
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kRecipeName = "recipe.toml";

/// JSON whose last field is the hash of all that stands before it.
std::string to_text(const Manifest& manifest);

/// Reads to_text(). @throws IoError that names `path` and what is wrong: a text that is cut off or
/// was changed by as much as a bit, another format version, a missing field.
Manifest parse_manifest(const std::string& path, std::string_view text);

}  // namespace armillary::train
