// folder.h: names and places of checkpoints in the folder of a run.
//
//   <job.dump_folder>/<checkpoint.folder>/
//     step-000010/      a whole checkpoint: it has a manifest
//     step-000020.tmp/  one that is being written, or that a crash left, or that is being removed
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "armillary/io/file_system.h"

namespace armillary::train {

/// "step-000020"; steps above 999999 have more digits.
std::string checkpoint_name(std::int64_t step);

/// Name while it is written or removed. Readers skip it.
inline constexpr const char* kTemporary = ".tmp";

/// A folder with a manifest.
struct FoundCheckpoint {
  std::int64_t step = 0;
  std::string path;
};

/// All that is in a folder of checkpoints.
struct FoundCheckpoints {
  std::vector<FoundCheckpoint> whole;  ///< Those with a manifest, by rising step.
  /// A line for each folder that was passed over, with the reason.
  std::vector<std::string> skipped;
};

/// Looks through a folder of checkpoints; one that is not there has none. @throws IoError if it
/// cannot be read.
FoundCheckpoints find_checkpoints(const std::string& folder);

/// Removes all temporaries. @throws IoError as the file system.
void remove_temporaries(io::FileSystem& files, const std::string& folder);

/// Removes the oldest whole checkpoints until `keep` are left; 0 keeps all. Each is renamed to a
/// temporary first, so that none is ever half there. @throws IoError as the file system.
void keep_newest(io::FileSystem& files, const std::string& folder, std::int64_t keep);

}  // namespace armillary::train
