#include "armillary/train/load_text.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"
#include "armillary/io/text_files.h"

namespace armillary::train {

PackedText load_text(const TrainingOptions& training) {
  if (training.dataset_path.empty()) {
    fail<InvalidArgument>(
        "recipe: training.dataset_path is empty; a folder or file of text is "
        "required, for example --set training.dataset_path=.");
  }
  // No extensions: all files.
  std::vector<std::string> extensions;
  if (!training.dataset_extensions.empty()) {
    for (const std::string_view extension : split(training.dataset_extensions, ',')) {
      extensions.emplace_back(extension);
    }
  }
  // Each file is a document.
  std::vector<std::string> documents;
  for (io::TextFile& file : io::read_text(training.dataset_path, extensions)) {
    documents.push_back(std::move(file.bytes));
  }
  return {documents, {.seq_len = training.seq_len, .seed = training.seed}};
}

}  // namespace armillary::train
