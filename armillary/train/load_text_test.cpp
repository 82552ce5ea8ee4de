#include "armillary/train/load_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/testing/sequences.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(LoadText, APathIsRequired) {
  EXPECT_THAT([] { load_text(TrainingOptions()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("training.dataset_path is empty")));
}

TEST(LoadText, ReadsTheExtensionsOfTheRecipeAndPacksWithItsSeed) {
  const auto folder = std::filesystem::temp_directory_path() / "armillary_load_text_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::vector<std::string> documents{"one", "three", "fourteen", "two"};
  for (const char* name : {"a.py", "b.md", "c.py"}) {
    std::ofstream(folder / name) << documents[static_cast<std::size_t>(name[0] - 'a')];
  }
  std::ofstream(folder / "d.so") << documents[3];
  TrainingOptions training;
  training.dataset_path = folder.string();
  training.seq_len = 2;
  training.seed = 5;
  for (const auto& [extensions, files] :
       {std::pair(".py", std::vector{0, 2}), std::pair(".md,.py", std::vector{0, 1, 2}),
        std::pair("", std::vector{0, 1, 2, 3})}) {
    training.dataset_extensions = extensions;
    std::vector<std::string> texts;
    texts.reserve(files.size());
    for (const int i : files) texts.push_back(documents[static_cast<std::size_t>(i)]);
    const PackedText required(texts, {.seq_len = 2, .seed = 5});
    const PackedText text = load_text(training);
    ASSERT_EQ(text.tokens(), required.tokens()) << extensions;
    for (std::int64_t i = 0; i < text.sequences(); ++i) {
      EXPECT_EQ(tokens_of(text.at(i)), tokens_of(required.at(i)))
          << extensions << " sequence " << i;
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace armillary::train
