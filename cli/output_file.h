// output_file.h: files that a verb writes when its work is done. Their missing folders are made, as
// are those of everything that the program writes.
#pragma once

#include <string>
#include <string_view>

namespace armillary::cli {

/// Refuses a file that cannot be written, before the work whose result it is to hold. A file that
/// exists keeps its contents; a file or folder that does not is not left behind. Pipes are refused,
/// but for streams of this process (core/file_kind.h).
/// @throws IoError that begins with the name of the verb.
void check_writable(std::string_view verb, const std::string& path);

/// Replaces the file. @throws IoError likewise.
void write_file(std::string_view verb, const std::string& path, std::string_view text);

}  // namespace armillary::cli
