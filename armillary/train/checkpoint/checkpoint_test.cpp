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
#include "armillary/train/testing/sequences.h"
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

/// Writes the rows of a [6, 3] matrix that each rank has as a checkpoint. Those of a rank follow
/// the ones before, moved up by `shift` if they are not the first.
void save_rows(const std::string& folder, const std::vector<std::vector<float>>& rows,
               std::int64_t shift = 0) {
  std::int64_t begin = 0;
  WritePlace place{.folder = folder, .step = 1, .rank = 0, .world = static_cast<int>(rows.size())};
  for (const std::vector<float>& part : rows) {
    const auto count = static_cast<std::int64_t>(part.size()) / 3;
    const io::TensorBytes bytes{{"parameters/w", io::TensorDtype::F32, {count, 3}},
                                std::as_bytes(std::span(part))};
    write_part(io::real_file_system(), place,
               {{bytes, {.whole = {6, 3}, .begin = {begin, 0}, .size = {count, 3}}}});
    begin += count - shift;
    ++place.rank;
  }
  place.rank = 0;
  publish(io::real_file_system(), place, progress_at(1), "", 0);
}

std::vector<float> numbers(int begin, int end) {
  std::vector<float> values;
  for (int i = begin; i < end; ++i) values.push_back(static_cast<float>(i));
  return values;
}

TEST(Checkpoint, ShardsAreReadAsAnyOtherRanges) {
  const ScratchFolder folder;
  save_rows(folder.path(), {numbers(0, 9), numbers(9, 9), numbers(9, 18)});
  const Checkpoint checkpoint(folder.path("step-000001"));
  checkpoint.verify(0, 1);
  for (const model::GlobalRange& range :
       {model::GlobalRange{{6, 3}, {0, 0}, {6, 3}}, model::GlobalRange{{6, 3}, {2, 1}, {3, 2}},
        model::GlobalRange{{6, 3}, {5, 2}, {1, 1}}, model::GlobalRange{{6, 3}, {0, 0}, {6, 0}}}) {
    std::vector<float> values(static_cast<std::size_t>(model::count_of_values(range.size)));
    checkpoint.read("parameters/w", io::TensorDtype::F32, range,
                    std::as_writable_bytes(std::span(values)));
    std::vector<float> expected;
    for (std::int64_t row = 0; row < range.size[0]; ++row) {
      for (std::int64_t column = 0; column < range.size[1]; ++column) {
        expected.push_back(
            static_cast<float>(3 * (range.begin[0] + row) + range.begin[1] + column));
      }
    }
    EXPECT_EQ(values, expected);
  }
  ASSERT_EQ(checkpoint.tensors().size(), 1U);
  EXPECT_EQ(checkpoint.tensors()[0].shape, (model::Shape{6, 3}));
}

TEST(Checkpoint, AShardThatIsMissingOrThereTwiceIsRefused) {
  const ScratchFolder folder;
  const auto opens = [&] { const Checkpoint checkpoint(folder.path("step-000001")); };
  save_rows(folder.path(), {numbers(0, 9), numbers(9, 15)});
  EXPECT_THAT(opens, ThrowsMessage<IoError>(HasSubstr(
                         "has 15 of 18 elements of tensor 'parameters/w'; each once is")));
  // As many elements as the tensor has, the first half twice.
  folder.clear();
  save_rows(folder.path(), {numbers(0, 9), numbers(0, 9)}, /*shift=*/3);
  EXPECT_THAT(opens, ThrowsMessage<IoError>(HasSubstr(
                         "elements [0, 0] to [3, 3] of tensor 'parameters/w' are in "
                         "part-00000-of-00002.safetensors and in part-00001-of-00002.safetensors, "
                         "the same shard; each once is required")));
}

TEST(Checkpoint, HashesOfSequencesTellTokensLabelsAndDocuments) {
  const Sequence sequence = sequence_of({1, 2}, {2, 3}, {2});
  for (const Sequence& other : {sequence_of({1, 3}, {2, 3}, {2}), sequence_of({1, 2}, {2, 4}, {2}),
                                sequence_of({1, 2}, {2, 3}, {1, 1})}) {
    EXPECT_NE(hash_of(sequence), hash_of(other));
  }
  EXPECT_EQ(hash_of(sequence), hash_of(Sequence(sequence)));
}

}  // namespace
}  // namespace armillary::train
