// files_test.cpp: flight files that cannot be made, and files that are none: a full disk, a limit
// on sizes, other versions, and files cut or half written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "armillary/core/error.h"
#include "armillary/host/recorder/format.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/host/recorder/recorder.h"
#include "armillary/host/recorder/testing/run_folder.h"

namespace armillary::recorder {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string io_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

std::string open_error(const std::string& run_folder) {
  return io_error_of([&] { const Recorder recorder(run_folder, {}); });
}

/// Runs `check` in a process of its own, which may limit itself; it returns whether all was well.
bool holds_in_child(const std::function<bool()>& check) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    std::_Exit(check() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool matches(const std::string& text, const std::string& reason) {
  return text.starts_with("recorder: ") && text.find(reason) != std::string::npos &&
         text.find("bytes left, is required") != std::string::npos;
}

TEST(FlightFile, AFolderThatCannotBeMade) {
  const RunFolder folder;
  std::ofstream(folder.path() + "/file") << "text";
  EXPECT_THAT(open_error(folder.path() + "/file/run"),
              AllOf(testing::StartsWith("recorder: "),
                    HasSubstr("/file/run/flight/rank-0000.bin cannot be made (Not a directory)")));
  // A folder in the place of the file.
  std::filesystem::create_directories(folder.file_of(0) + "/full");
  EXPECT_THAT(open_error(folder.path()), HasSubstr("rank-0000.bin cannot be made (Directory not"));
}

TEST(FlightFile, ALimitOnTheSizeOfFiles) {
  const RunFolder folder;
  EXPECT_TRUE(holds_in_child([&] {
    const rlimit limit{.rlim_cur = 16384, .rlim_max = 16384};
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 &&
           matches(open_error(folder.path()), "(File too large)");
  }));
  EXPECT_FALSE(std::filesystem::exists(folder.file_of(0)));
}

TEST(FlightFile, AFullDisk) {
  const RunFolder folder;
  // A user namespace, in which this user is root and may mount; the kernel ends it with the child.
  const std::string users = fmt::format("0 {} 1", getuid());
  const std::string groups = fmt::format("0 {} 1", getgid());
  const auto mount_small = [&] {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/uid_map") << users;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/gid_map") << groups;
    return mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=32k") == 0;
  };
  if (!holds_in_child(mount_small)) GTEST_SKIP() << "[SKIP] no file system may be mounted here";
  EXPECT_TRUE(holds_in_child([&] {
    return mount_small() && matches(open_error(folder.path()), "(No space left on device)") &&
           !std::filesystem::exists(folder.file_of(0));
  }));
}

/// A good file of rank 0 of 2, with one op, whose bytes a test then changes.
class DamagedFile : public testing::Test {
 protected:
  DamagedFile() {
    Recorder recorder(folder_.path(), {.world = 2});
    recorder.words(plan::attention_words());
    recorder.start({.kind = plan::OpKind::Recv, .index = 7, .peer = 1});
  }
  std::string path() const { return folder_.file_of(0); }
  std::string run() const { return folder_.path(); }

  void write_at(std::size_t byte, const std::string& bytes) const {
    std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(byte));
    file << bytes;
  }
  std::string error() const {
    return io_error_of([&] { read_flight(path()); });
  }
  static constexpr std::size_t kFirstRecord = kRecordsAt * kWordBytes;

 private:
  RunFolder folder_;
};

TEST_F(DamagedFile, IsRefused) {
  EXPECT_EQ(error(), "no error");
  write_at(kFirstRecord + offsetof(Record, op) + offsetof(StartedOp, kind), "\x7f");
  EXPECT_THAT(error(), HasSubstr("rank-0000.bin' is damaged at byte 3584; a flight file as it was "
                                 "written is required"));
  write_at(kFirstRecord + offsetof(Record, op) + offsetof(StartedOp, kind), "\x01");
  write_at(kFirstRecord + offsetof(Record, op) + offsetof(StartedOp, peer), "\x02");
  EXPECT_THAT(error(), HasSubstr("is damaged at byte 3584"));
  write_at(kFirstRecord + offsetof(Record, op) + offsetof(StartedOp, peer), "\x01");
  EXPECT_EQ(error(), "no error");
  write_at(kEndingAt * kWordBytes, "\x09");
  EXPECT_THAT(error(), HasSubstr("is damaged at byte 320"));
  write_at(offsetof(Identity, rank), "\x02");
  EXPECT_THAT(error(), HasSubstr("is damaged at byte 8"));
}

// Readers make room for every rank: a world is believed only as it was written.
TEST_F(DamagedFile, AWorldThatNobodyWroteIsRefused) {
  for (const char* bytes : {"\xff\xff\xff\x7f", "\xff\x3f", "\x03", "\x01"}) {
    write_at(offsetof(Identity, world), bytes);
    EXPECT_THAT(error(), HasSubstr("is damaged at byte 8")) << bytes;
  }
}

TEST_F(DamagedFile, APipeIsNotWaitedFor) {
  std::filesystem::remove(path());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("rank-0000.bin' is a pipe; a flight file is required"));
}

TEST_F(DamagedFile, OfAnotherVersion) {
  write_at(offsetof(Identity, format_version), "\x04");
  std::filesystem::resize_file(path(), 69600);
  EXPECT_THAT(error(), HasSubstr("has format version 4; 5 is required, that of this program"));
}

TEST_F(DamagedFile, OfAnotherProgram) {
  write_at(0, "PK");
  EXPECT_THAT(error(), HasSubstr("is no flight file; one that `armillary train` wrote is"));
  std::filesystem::resize_file(path(), 0);
  EXPECT_THAT(error(), HasSubstr("has 0 bytes; a flight file of 102368 bytes is required"));
}

TEST_F(DamagedFile, Truncated) {
  std::filesystem::resize_file(path(), 102367);
  EXPECT_THAT(error(), HasSubstr("has 102367 bytes; a flight file of 102368 bytes is required"));
}

TEST_F(DamagedFile, AnOpThatWasHalfWrittenIsLeftOut) {
  {
    Recorder recorder(run(), {.world = 2});
    recorder.begin_call("ring", recorder.words(plan::attention_words()), 0);
    for (int i = 0; i < 5; ++i)
      recorder.start({.kind = plan::OpKind::Attend, .index = i, .peer = 0});
  }
  // Op 2, "being written": the writer stopped there.
  write_at(kFirstRecord + 2 * sizeof(Record), std::string(1, 2 << 2 | 1));
  const Flight flight = read_flight(path());
  EXPECT_EQ(flight.torn, 1);
  ASSERT_EQ(flight.ops.size(), 4);
  EXPECT_EQ(flight.ops[1].op.index, 1);
  EXPECT_EQ(flight.ops[2].op.index, 3);
}

TEST_F(DamagedFile, UnderTheNameOfAnotherRank) {
  std::filesystem::rename(path(), flight_path(run(), 1));
  EXPECT_THAT(io_error_of([&] { read_run(run()); }),
              AllOf(HasSubstr("rank-0001.bin' is the file of rank 0; the name "),
                    HasSubstr("rank-0000.bin' is required")));
}

TEST(RunFolders, OfNoRun) {
  const RunFolder folder;
  EXPECT_THAT(io_error_of([&] { read_run(folder.path() + "/none"); }),
              HasSubstr("none/flight' does not exist; the folder of a run is required"));
  std::filesystem::create_directories(folder.path() + "/flight");
  std::ofstream(folder.path() + "/flight/notes.txt") << "text";
  EXPECT_THAT(io_error_of([&] { read_run(folder.path()); }),
              HasSubstr("/flight' has no flight files; the folder of a run is required"));
  std::ofstream(folder.path() + "/flight/rank-0000.bin") << "text";
  EXPECT_THAT(io_error_of([&] { read_run(folder.path()); }), HasSubstr("has 4 bytes; "));
}

TEST(RunFolders, FilesOfAnEarlierRunAreLeftOut) {
  const RunFolder folder;
  const auto record = [&](int world, int rank) {
    Recorder(folder.path(), {.world = world, .rank = rank}).begin_step(1);
  };
  for (int rank = 0; rank < 5; ++rank) record(5, rank);
  for (const int rank : {0, 2}) record(3, rank);
  const RecordedRun run = read_run(folder.path());
  ASSERT_EQ(run.flights.size(), 3);
  EXPECT_TRUE(run.flights[0]);
  EXPECT_FALSE(run.flights[1]);
  EXPECT_TRUE(run.flights[2]);
  EXPECT_EQ(run.states[2], ProcessState::Alive);
}

}  // namespace
}  // namespace armillary::recorder
