// data_test.cpp: the verb data: a folder is prepared, shown and checked; bad command lines.
#include <gtest/gtest.h>

#include <string>

#include "armillary/text/tokenizer/testing/small_tokenizers.h"
#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::HasSubstr;

TEST(DataVerb, PreparesShowsAndChecks) {
  const Folder folder;
  const std::string tokenizer = folder.write("tokenizer.json", tokenizer::byte_level_json());
  const std::string text = folder.write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  const ProgramRun prepared =
      run({"data", "prepare", folder.path("tokens"), "--tokenizer", tokenizer, "--source",
           "lines=" + text, "--weight", "lines=2", "--seq-len", "8", "--separator", "<|end|>"});
  EXPECT_EQ(prepared.code, 0) << prepared.err;
  EXPECT_THAT(prepared.out, HasSubstr("an epoch reads 2 sequences"));
  EXPECT_EQ(run({"data", "show", folder.path("tokens")}).out, prepared.out);
  const ProgramRun checked = run({"data", "check", folder.path("tokens")});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("1 shards are as they were written"));
  folder.write("tokens/train-000-00000.tokens", "short");
  expect_error({"data", "check", folder.path("tokens")}, HasSubstr("has 5 bytes"));
}

TEST(DataVerb, RefusesBadCommandLines) {
  const Folder folder;
  const std::string tokenizer = folder.write("tokenizer.json", tokenizer::byte_level_json());
  const std::string text = folder.write("a.txt", "one");
  const auto prepare = [&](std::vector<std::string> more, const std::string& error) {
    std::vector<std::string> words{"data", "prepare", folder.path("tokens"), "--tokenizer",
                                   tokenizer};
    words.insert(words.end(), more.begin(), more.end());
    expect_error(words, HasSubstr(error));
  };
  prepare({"--seq-len", "8"}, "--source is required");
  prepare({"--source", text, "--seq-len", "8"}, "no end token is named by the files");
  prepare({"--source", text, "--seq-len", "0", "--separator", "<|end|>"}, "sequences of 0 tokens");
  prepare({"--source", text, "--seq-len", "8", "--packing", "fit"}, "--packing");
  prepare({"--source", text, "--seq-len", "8", "--weight", "b=2"}, "--weight");
  prepare({"--source", text, "--seq-len", "8", "--weight", "a.txt"}, "NAME=NUMBER is required");
  prepare({"--source", "=", "--seq-len", "8"}, "PATH or NAME=PATH is required");
  expect_error({"data", "show", folder.path("none")}, HasSubstr("does not exist"));
  expect_error({"data", "prepare", folder.path("tokens"), "--tokenizer", text, "--source", text,
                "--seq-len", "8"},
               HasSubstr("is no JSON"));
}

}  // namespace
}  // namespace armillary::error
