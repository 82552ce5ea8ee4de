// proof_file_test.cpp: recorded proofs: what is read is what was proved. Files that are cut,
// edited, of another version or another problem are refused.
#include "armillary/proof/proof_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "armillary/core/testing/expect_error.h"
#include "armillary/proof/testing/changed_programs.h"

namespace armillary::proof {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ProofFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("armillary_proofs_" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string save() const { return save_proof(folder_, problem_, ring_); }
  std::string refusal() const {
    return error_of([&] { load_proof(folder_, problem_, ring_); });
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  /// Replaces one part of the file.
  static void edit(const std::string& path, const std::string& part, const std::string& by) {
    std::string text = text_of(path);
    const std::size_t at = text.find(part);
    ASSERT_NE(at, std::string::npos) << part;
    write(path, text.replace(at, part.size(), by));
  }

  std::string folder_;
  plan::Problem problem_{.world = 4,
                         .heads = 2,
                         .kv_heads = 2,
                         .head_dim = 8,
                         .value_dim = 8,
                         .mask = plan::causal_mask({64, 64}, plan::Align::Start)};
  plan::Strategy ring_ = plan::parse_strategy("ring");
};

TEST_F(ProofFile, KeepsTheDigestsOfAllPrograms) {
  std::filesystem::create_directories(folder_);
  EXPECT_EQ(load_proof(folder_, problem_, ring_), std::nullopt) << "nothing is there yet";
  const std::string path = save();
  EXPECT_EQ(path, proof_path(folder_, digest_of(problem_, ring_)));
  const std::optional<Programs> programs = load_proof(folder_, problem_, ring_);
  ASSERT_TRUE(programs);
  const plan::Planner planner(problem_, ring_);
  for (std::size_t p = 0; p < kPasses.size(); ++p) {
    EXPECT_EQ((*programs)[p], prove(planner, kPasses[p]).programs);
  }
  EXPECT_EQ(load_proof(folder_, problem_, plan::parse_strategy("tokenring")), std::nullopt);
}

TEST_F(ProofFile, IsNotWrittenForAWrongPlan) {
  const ProgramSource broken = changed_programs([](plan::Pass, plan::RankProgram& program) {
    if (program.rank == 1 && !program.ops.empty()) program.ops.pop_back();
  });
  EXPECT_THROW(save_proof(folder_, problem_, ring_, broken), PlanError);
  EXPECT_FALSE(std::filesystem::exists(proof_path(folder_, digest_of(problem_, ring_))));
}

TEST_F(ProofFile, OfAnotherVersionIsRefused) {
  const std::string path = save();
  edit(path, "\"version\":\"" + std::string(version()), "\"version\":\"9.9.9");
  EXPECT_EQ(refusal(), "proof: " + path + " is of version \"9.9.9\"; \"" + std::string(version()) +
                           "\" is required; run armillary verify --save-proof again");
  save();
  edit(path, "\"format_version\":1", "\"format_version\":2");
  EXPECT_THAT(refusal(), HasSubstr("is of format_version 2; 1 is required"));
}

TEST_F(ProofFile, ThatIsCutOffIsRefused) {
  const std::string path = save();
  const std::string text = text_of(path);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, text.size() / 2, text.size() - 2}) {
    write(path, text.substr(0, size));
    EXPECT_THAT(refusal(), AllOf(HasSubstr(path), HasSubstr("is cut off, or is no JSON"))) << size;
  }
  write(path, "{}");
  EXPECT_THAT(refusal(), HasSubstr("has no format_version"));
}

TEST_F(ProofFile, ThatWasEditedIsRefused) {
  const std::string path = save();
  const Digest real = load_proof(folder_, problem_, ring_)->at(0)[1];
  edit(path, to_string(real), to_string(Digest{1, 2}));
  EXPECT_THAT(refusal(), HasSubstr("was edited: it says digest "));
  save();
  edit(path, "\"digest\":\"", "\"digest\":7,\"x\":\"");
  EXPECT_THAT(refusal(), HasSubstr("was edited"));
}

TEST_F(ProofFile, OfAnotherProblemIsRefused) {
  plan::Problem other = problem_;
  other.heads = 4;
  std::filesystem::rename(save_proof(folder_, other, ring_),
                          proof_path(folder_, digest_of(problem_, ring_)));
  EXPECT_THAT(refusal(), HasSubstr("is of problem.heads 4; 2 is required"));
}

TEST_F(ProofFile, WhatIsNoFolderOrNoFileIsRefused) {
  const auto refused = [this](const std::string& folder) -> std::string {
    try {
      load_proof(folder, problem_, ring_);
    } catch (const IoError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(refused(folder_), HasSubstr(folder_ + " is no folder")) << "not there";
  const std::string path = save();
  EXPECT_THAT(refused(path), HasSubstr(path + " is no folder"));
  std::filesystem::remove(path);
  std::filesystem::create_directories(path);
  EXPECT_THAT(refused(folder_), HasSubstr(path + "' is a folder; a file of verify --save-proof"));
  std::filesystem::remove(path);
  std::filesystem::create_symlink(path, path);
  EXPECT_THAT(refused(folder_), HasSubstr(path + "' cannot be read (Too many levels"));
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(refused(folder_), HasSubstr(path + "' is a pipe")) << "and is not waited for";
}

}  // namespace
}  // namespace armillary::proof
