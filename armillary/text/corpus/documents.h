// documents.h: the documents of files of users: text, JSON lines, Parquet.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/text/corpus/index.h"

namespace armillary::corpus {

/// How documents are taken from files.
struct DocumentOptions {
  /// Key of the text, in each line of JSON and in Parquet.
  std::string field = "text";
  /// Files of a folder that are read.
  std::vector<std::string> extensions = {".txt", ".md", ".py", ".jsonl", ".parquet"};
};

/// Called with each document, whose view is valid during the call.
using OnDocument = std::function<void(std::string_view document)>;

/// Reads all documents of a file: a line of `.jsonl` is an object with the text under `field`, and
/// empty lines are none; a row of `.parquet` is read by pyarrow in $ARMILLARY_PYTHON, or python3;
/// another file is one document. Memory: a line, or a file of text, which is mapped.
/// @throws IoError that names the file, and the line, if it cannot be read, is not UTF-8, is no
/// JSON or has no text there; Error if Python cannot be started.
SourceFile read_documents(const std::string& path, const DocumentOptions& options,
                          const OnDocument& on_document);

}  // namespace armillary::corpus
