// mapped_file_test.cpp: files that are written through memory, and those that cannot be made.
#include "armillary/io/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace armillary::io {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("armillary_mapped_file_" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// The error of create(), or 0.
  static int error_of_create(const std::string& path, std::size_t size) {
    try {
      MappedFile::create(path, size);
      return 0;
    } catch (const std::system_error& error) {
      return error.code().value();
    }
  }

 private:
  fs::path folder_;
};

TEST_F(MappedFileTest, StoresOfOneAreSeenByOthers) {
  constexpr std::size_t kSize = 10'000;
  MappedFile file = MappedFile::create(path("a"), kSize);
  ASSERT_EQ(file.writable_bytes().size(), kSize);
  EXPECT_EQ(fs::file_size(path("a")), kSize);
  MappedFile reader("test", path("a"));
  EXPECT_EQ(std::ranges::count(reader.bytes(), std::byte{0}), static_cast<std::ptrdiff_t>(kSize));
  file.writable_bytes().back() = std::byte{7};
  EXPECT_EQ(reader.bytes().back(), std::byte{7});
  EXPECT_TRUE(reader.writable_bytes().empty());
}

TEST_F(MappedFileTest, WhatIsThereIsKept) {
  std::ofstream(path("a")) << "text";
  fs::create_symlink(path("none"), path("link"));
  EXPECT_EQ(error_of_create(path("a"), 16), EEXIST);
  EXPECT_EQ(error_of_create(path("link"), 16), EEXIST);
  EXPECT_EQ(error_of_create(path("no/folder"), 16), ENOENT);
  EXPECT_EQ(fs::file_size(path("a")), 4U);
  EXPECT_FALSE(fs::exists(path("none")));
}

/// Storing beyond the limit of the process would be a signal.
TEST_F(MappedFileTest, NoFileIsLeftWhereThereIsNoSpace) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const int error = error_of_create(path("a"), 8192);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(error, EFBIG);
  EXPECT_FALSE(fs::exists(path("a")));
}

}  // namespace
}  // namespace armillary::io
