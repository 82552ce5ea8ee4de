// Names tell the state of a folder: step-N is whole if it has a manifest; step-N with the temporary
// suffix is being written or removed, and a run that finds one takes it away.
#include "armillary/train/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/train/checkpoint/manifest.h"

namespace armillary::train {
namespace {

namespace fs = std::filesystem;

/// The step of a name that checkpoint_name() gives.
std::optional<std::int64_t> step_of(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const std::string_view digits = name.substr(kPrefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  // It must be the name that is printed for this step: "step-7" is no checkpoint.
  if (error != std::errc() || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

/// Whether a folder was being written or removed.
bool is_temporary(std::string_view name) {
  const std::string_view suffix(kTemporary);
  return name.ends_with(suffix) && step_of(name.substr(0, name.size() - suffix.size()));
}

/// Names of the entries of a folder, sorted; none if it is not there.
std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::exists(fs::status(folder, error))) return names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) {
    fail<IoError>("checkpoint: folder {} cannot be read ({}); a readable folder is required",
                  excerpt(folder), error.message());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:06}", step);
}

FoundCheckpoints find_checkpoints(const std::string& folder) {
  FoundCheckpoints checkpoints;
  for (const std::string& name : entries_of(folder)) {
    const std::string path = fmt::format("{}/{}", folder, name);
    std::error_code error;  // An error means that there is no manifest.
    const auto step = step_of(name);
    if (is_temporary(name)) {
      checkpoints.skipped.push_back(
          fmt::format("checkpoint: skipped {}: its writing was cut off", path));
    } else if (step && fs::is_regular_file(path + "/" + kManifestName, error)) {
      checkpoints.whole.push_back({*step, path});
    } else if (step) {
      checkpoints.skipped.push_back(
          fmt::format("checkpoint: skipped {}: it has no {}", path, kManifestName));
    }
  }
  // By number: names of more than six digits do not sort.
  std::ranges::sort(checkpoints.whole, {}, &FoundCheckpoint::step);
  return checkpoints;
}

void remove_temporaries(io::FileSystem& files, const std::string& folder) {
  for (const std::string& name : entries_of(folder)) {
    if (is_temporary(name)) io::remove_tree(files, fmt::format("{}/{}", folder, name));
  }
}

void keep_newest(io::FileSystem& files, const std::string& folder, std::int64_t keep) {
  if (keep == 0) return;
  const std::vector<FoundCheckpoint> whole = find_checkpoints(folder).whole;
  // The oldest first; temporaries and folders without a manifest do not count.
  const auto count = static_cast<std::int64_t>(whole.size());
  for (std::int64_t i = 0; i < count - keep; ++i) {
    const std::string& path = whole[static_cast<std::size_t>(i)].path;
    // Renamed before anything in it is removed: a cut in between must not leave a folder that looks
    // whole.
    files.rename(path, path + kTemporary);
    files.sync_folder(folder);
    io::remove_tree(files, path + kTemporary);
  }
}

}  // namespace armillary::train
