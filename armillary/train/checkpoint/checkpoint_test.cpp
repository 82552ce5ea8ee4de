// checkpoint_test.cpp: checkpoints as their readers see them: of any world on any world, and every
// truncated file and flipped bit named with its tensor.
#include "armillary/train/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/train/testing/scratch_folder.h"
#include "armillary/train/testing/small_checkpoint.h"

namespace armillary::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Opens and checks every byte.
void read_all(const std::string& path) {
  Checkpoint(path).verify(0, 1);
}

std::vector<std::string> file_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(Checkpoint, OfAnyWorldIsReadOnAnyWorld) {
  const ScratchFolder folder;
  for (const int world : {1, 2, 3, 8}) {
    save_small(io::real_file_system(), folder.path(), world, world);
    const Checkpoint checkpoint(folder.path("step-00000" + std::to_string(world)));
    EXPECT_TRUE(holds_its_state(checkpoint)) << world;
    EXPECT_EQ(checkpoint.manifest().world, world);
    EXPECT_EQ(checkpoint.manifest().files.size(), static_cast<std::size_t>(world) + 1);
  }
}

TEST(Checkpoint, EveryTruncatedFileIsNamed) {
  const ScratchFolder folder;
  save_small(io::real_file_system(), folder.path(), 1, 2);
  const std::string checkpoint = folder.path("step-000001");
  for (const std::string& name : file_names(checkpoint)) {
    const std::string whole = folder.read("step-000001/" + name);
    ASSERT_FALSE(whole.empty());
    for (std::size_t size = 0; size < whole.size(); ++size) {
      fs::resize_file(fs::path(checkpoint) / name, size);
      EXPECT_THAT([&] { read_all(checkpoint); }, ThrowsMessage<IoError>(HasSubstr(name))) << size;
      folder.write("step-000001/" + name, whole);
    }
    fs::remove(fs::path(checkpoint) / name);
    EXPECT_THAT(
        [&] { read_all(checkpoint); },
        ThrowsMessage<IoError>(HasSubstr(name + "' does not exist; a readable file is required")));
    // A pipe in its place is refused, not waited for.
    ASSERT_EQ(mkfifo((fs::path(checkpoint) / name).c_str(), 0600), 0);
    EXPECT_THAT([&] { read_all(checkpoint); },
                ThrowsMessage<IoError>(HasSubstr(name + "' is a pipe; a readable file is")));
    fs::remove(fs::path(checkpoint) / name);
    folder.write("step-000001/" + name, whole);
  }
  read_all(checkpoint);
  fs::resize_file(checkpoint + "/part-00000-of-00002.safetensors",
                  folder.read("step-000001/part-00000-of-00002.safetensors").size() - 1);
  EXPECT_THAT([&] { read_all(checkpoint); },
              ThrowsMessage<IoError>(HasSubstr("tensor 'parameters/t1' ends at byte ")));
}

TEST(Checkpoint, EveryFlippedBitIsNamedWithItsTensor) {
  const ScratchFolder folder;
  save_small(io::real_file_system(), folder.path(), 1, 2);
  const std::string checkpoint = folder.path("step-000001");
  const Checkpoint intact(checkpoint);
  for (const std::string& name : file_names(checkpoint)) {
    const std::string whole = folder.read("step-000001/" + name);
    std::fstream file(fs::path(checkpoint) / name, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](std::size_t at, char byte) {
      file.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
    };
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      const std::size_t at = bit / 8;
      put(at, static_cast<char>(whole[at] ^ (1 << bit % 8)));
      EXPECT_THAT([&] { read_all(checkpoint); }, ThrowsMessage<IoError>(HasSubstr(name)))
          << "bit " << bit % 8 << " of byte " << at;
      put(at, whole[at]);
    }
  }
  read_all(checkpoint);
  // In the values, the tensor and its place are named.
  const std::string name = "part-00001-of-00002.safetensors";
  const std::string whole = folder.read("step-000001/" + name);
  const io::SafetensorsFile part(fs::path(checkpoint) / name);
  for (const io::TensorInfo& info : part.tensors()) {
    if (info.bytes() == 0) continue;
    std::string changed = whole;
    changed[static_cast<std::size_t>(part.offset(info.name) + info.bytes() - 1)] ^= 1;
    folder.write("step-000001/" + name, changed);
    EXPECT_THAT(
        [&] { read_all(checkpoint); },
        ThrowsMessage<IoError>(AllOf(
            HasSubstr(name), HasSubstr("tensor '" + info.name + "'"),
            HasSubstr("at byte " + std::to_string(part.offset(info.name)) + " was changed"))));
  }
}

TEST(Checkpoint, TensorsOfAnotherModelAreRefused) {
  const ScratchFolder folder;
  save_small(io::real_file_system(), folder.path(), 1, 1);
  const Checkpoint checkpoint(folder.path("step-000001"));
  EXPECT_THAT([&] { (void)checkpoint.bytes({"parameters/x"}); },
              ThrowsMessage<IoError>(HasSubstr("has no tensor 'parameters/x'")));
  EXPECT_THAT(
      [&] {
        (void)checkpoint.bytes({"parameters/t0", io::TensorDtype::F32, {5, 1}});
      },
      ThrowsMessage<IoError>(
          HasSubstr("tensor 'parameters/t0' is F32 [5]; F32 [5,1] is required")));
  EXPECT_THAT(
      [&] {
        (void)checkpoint.bytes({"parameters/t0", io::TensorDtype::BF16, {5}});
      },
      ThrowsMessage<IoError>(HasSubstr("is F32 [5]; BF16 [5] is required")));
}

TEST(Checkpoint, HashesOfSequencesTellTokensLabelsAndDocuments) {
  const Sequence sequence{.tokens = {1, 2}, .labels = {2, 3}, .documents = {2}};
  for (const Sequence& other :
       {Sequence{.tokens = {1, 3}, .labels = {2, 3}, .documents = {2}},
        Sequence{.tokens = {1, 2}, .labels = {2, 4}, .documents = {2}},
        Sequence{.tokens = {1, 2}, .labels = {2, 3}, .documents = {1, 1}}}) {
    EXPECT_NE(hash_of(sequence), hash_of(other));
  }
  EXPECT_EQ(hash_of(sequence), hash_of(Sequence(sequence)));
}

}  // namespace
}  // namespace armillary::train
