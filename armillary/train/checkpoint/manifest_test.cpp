// manifest_test.cpp: manifests are read as they were written, also those of earlier versions; every
// cut, flipped bit and field of another kind is refused.
#include "armillary/train/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/error.h"
#include "armillary/io/content_hash.h"

namespace armillary::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Manifest some_manifest() {
  return {.version = "1.2.3",
          .world = 2,
          .progress = {.step = 20, .sequences_read = 40, .last_sequence = "ab", .vocab_size = 257},
          .files = {{.name = "part", .bytes = 100, .front_bytes = 60, .front_hash = "cd"}},
          .tensors = {{.info = {"parameters/w", io::TensorDtype::F32, {2, 5}},
                       .range = {.whole = {6, 5}, .begin = {4, 0}, .size = {2, 5}},
                       .file = "part",
                       .hash = "ef"}}};
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest read = parse_manifest("m", to_text(some_manifest()));
  EXPECT_EQ(read.version, "1.2.3");
  EXPECT_EQ(read.world, 2);
  EXPECT_EQ(read.progress, some_manifest().progress);
  EXPECT_EQ(read.files, some_manifest().files);
  ASSERT_EQ(read.tensors.size(), 1U);
  EXPECT_EQ(read.tensors[0].info.name, "parameters/w");
  EXPECT_EQ(read.tensors[0].info.dtype, io::TensorDtype::F32);
  EXPECT_EQ(read.tensors[0].info.shape, (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(read.tensors[0].range, some_manifest().tensors[0].range);
  EXPECT_EQ(read.tensors[0].file, "part");
  EXPECT_EQ(read.tensors[0].hash, "ef");
}

TEST(Manifest, KeepsTheIdentityOfTheData) {
  Manifest manifest = some_manifest();
  manifest.progress.data = {"packing = cut", "file a\"b = 3 bytes"};
  EXPECT_EQ(parse_manifest("m", to_text(manifest)).progress, manifest.progress);
  EXPECT_EQ(to_text(some_manifest()).find("\"data\""), std::string::npos);
}

TEST(Manifest, KeepsWhatTheGuardForSpikesNeeds) {
  Manifest manifest = some_manifest();
  manifest.progress.skipped = {3, 17};
  manifest.progress.recent = {.losses = {0.1 + 0.2, 5}, .norms = {1e-300, 2.5}};
  EXPECT_EQ(parse_manifest("m", to_text(manifest)).progress, manifest.progress);
  EXPECT_EQ(to_text(some_manifest()).find("skipped"), std::string::npos);
  EXPECT_EQ(to_text(some_manifest()).find("recent"), std::string::npos);
}

TEST(Manifest, EveryShorterTextAndEveryFlippedBitIsRefused) {
  const std::string whole = to_text(some_manifest());
  const auto expect_refused = [](const std::string& text) {
    EXPECT_THAT([&] { parse_manifest("a/m.json", text); },
                ThrowsMessage<IoError>(HasSubstr("checkpoint: a/m.json is cut off or was changed")))
        << text;
  };
  for (std::size_t size = 0; size < whole.size(); ++size) expect_refused(whole.substr(0, size));
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string text = whole;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    expect_refused(text);
  }
}

/// A text with a hash that is right.
std::string signed_text(const std::string& fields) {
  return fields + ",\"hash\":\"" + io::content_hash(fields) + "\"}\n";
}

TEST(Manifest, OtherVersionsAndMissingFieldsAreRefused) {
  EXPECT_THAT([] { parse_manifest("m", signed_text("{\"format_version\":2")); },
              ThrowsMessage<IoError>("checkpoint: m has format_version 2; 1 is required"));
  EXPECT_THAT(
      [] { parse_manifest("m", signed_text("{\"format_version\":1")); },
      ThrowsMessage<IoError>("checkpoint: m has no field 'version' of its kind; a manifest of "
                             "format_version 1 is required"));
}

TEST(Manifest, OfEarlierVersionsHasWholeTensors) {
  const std::string whole = to_text(some_manifest());
  std::string body = whole.substr(0, whole.rfind(",\"hash\""));
  const std::string range = "\"begin\":[4,0],\"whole\":[6,5],";
  body.erase(body.find(range), range.size());
  EXPECT_EQ(parse_manifest("m", signed_text(body)).tensors[0].range, model::whole_of({2, 5}));
}

// A hash that is right does not make a field so: another program may have written it.
TEST(Manifest, FieldsOfAnotherKindAreRefused) {
  const std::string whole = to_text(some_manifest());
  const std::string body = whole.substr(0, whole.rfind(",\"hash\""));
  const auto expect_refused = [&](const std::string& from, const std::string& to,
                                  const std::string& key) {
    std::string text = body;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    EXPECT_THAT([&] { parse_manifest("m", signed_text(text)); },
                ThrowsMessage<IoError>(HasSubstr("m has no field '" + key + "' of its kind")))
        << text;
  };
  expect_refused("\"world\":2", "\"world\":2.5", "world");
  expect_refused("\"world\":2", "\"world\":4294967298", "world");
  expect_refused("\"shape\":[2,5]", "\"shape\":[2,-5]", "shape");
  expect_refused("\"shape\":[2,5]", "\"shape\":7", "shape");
  expect_refused("\"begin\":[4,0]", "\"begin\":[5,0]", "begin");
  expect_refused("\"begin\":[4,0]", "\"begin\":[4]", "begin");
  expect_refused("\"whole\":[6,5]", "\"whole\":[6,4]", "begin");
  expect_refused("\"whole\":[6,5],", "", "whole");
  expect_refused("\"file\":\"part\"", "\"file\":\"other\"", "file");
  expect_refused("\"name\":\"part\"", "\"name\":\"../part\"", "name");
  expect_refused("\"progress\":{", "\"progress\":[],\"x\":{", "step");
  expect_refused("\"progress\":{", "\"progress\":{\"skipped\":[-1],", "skipped");
  expect_refused("\"progress\":{", "\"progress\":{\"recent_losses\":[\"a\"],", "recent_losses");
  expect_refused("\"progress\":{", "\"progress\":{\"recent_losses\":[1],", "recent_norms");
}

}  // namespace
}  // namespace armillary::train
