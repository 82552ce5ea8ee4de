// text_files.h: reads a file or a folder of text as documents of bytes. It knows nothing of tokens.
#pragma once

#include <string>
#include <vector>

namespace armillary::io {

/// One file: its path (as found, not made absolute) and all its bytes, which are valid UTF-8.
struct TextFile {
  std::string path;
  std::string bytes;
};

/// Paths of the files that read_text() reads: `path` itself, or those below the folder, sorted.
/// @throws IoError if the folder cannot be read, or holds a pipe, socket or device with such an
/// extension.
std::vector<std::string> text_paths(const std::string& path,
                                    const std::vector<std::string>& extensions = {});

/// Reads the text at `path`, a file or a folder.
///
/// (1) A folder is walked recursively; links to folders are not followed. Only files with one of
/// the `extensions` (".py", with the dot) are read; all files if the list is empty. (2) A file is
/// read whatever its extension. (3) The result is sorted by path, bytewise: the same folder gives
/// the same documents everywhere. (4) Files of 0 bytes are left out (an empty `__init__.py` is not
/// a document). (5) A pipe, socket or device with such an extension is refused before any file is
/// read.
///
/// Cost: one read of every byte; all documents are in memory at once.
/// @throws IoError if `path` is missing or unreadable, a file cannot be read, no document is found,
/// or a file is not UTF-8 (names the file and the byte offset).
std::vector<TextFile> read_text(const std::string& path,
                                const std::vector<std::string>& extensions = {});

}  // namespace armillary::io
