// The standard library under a program that is linked with torch: the system's own. Libraries of
// torch export parts of another one, and with those of torch 2.11 std::filesystem::remove_all() is
// a call of a null pointer.
#include <ATen/core/Tensor.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace armillary::kernel {
namespace {

TEST(TorchLink, TheStandardLibraryIsTheSystems) {
  ASSERT_FALSE(at::Tensor().defined());  // So torch is linked.
  using RemoveAll = std::uintmax_t(const std::filesystem::path&);
  RemoveAll* const remove_all = &std::filesystem::remove_all;
  Dl_info info = {};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(remove_all), &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("libstdc++"), std::string::npos) << info.dli_fname;
}

}  // namespace
}  // namespace armillary::kernel
