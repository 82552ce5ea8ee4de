// run_test.cpp: pages are gathered on ranks that are threads, on the CPU and on the late device, by
// the machine that runs attention, and the flight recorder is told of their ops.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "armillary/comm/local.h"
#include "armillary/host/recorder/reader.h"
#include "armillary/host/recorder/recorder.h"
#include "armillary/runtime/machine.h"
#include "armillary/runtime/testing/late_device.h"
#include "tests/vocabulary/pages.h"

namespace armillary::pages {
namespace {

const plan::TensorId kPage{};

std::shared_ptr<const runtime::MachineProgram> prepared(const Table& table, plan::Rank rank) {
  auto program = std::make_shared<runtime::MachineProgram>();
  program->program = gather(table, rank);
  runtime::prepare(*program, table.world, measures_of(table));
  return program;
}

/// The ops of pages: `put` copies.
class Gather final : public runtime::Machine {
 public:
  Gather(std::shared_ptr<const runtime::MachineProgram> program, comm::Communicator& comm,
         const runtime::RunOptions& options)
      : Machine(program, comm, options), program_(std::move(program)) {}
  ~Gather() { drain(); }

 private:
  void run(int op) override {
    for (std::size_t s = 0; s < program_->ops[op].views[0].segments.size(); ++s) {
      part(op, 0, s).copy_(part(op, 1, s));
    }
  }
  std::shared_ptr<const runtime::MachineProgram> program_;
};

/// Every number of a table is its own index.
at::Tensor whole(const Table& table) {
  const std::int64_t rows = table.pages * table.rows;
  return at::arange(rows * table.columns, at::kFloat).view({1, rows, table.columns, 1});
}

at::Tensor part_of(const Table& table, plan::Rank rank) {
  std::vector<at::Tensor> parts;
  for (const int page : owned(table, rank)) {
    parts.push_back(whole(table).narrow(1, page * table.rows, table.rows));
  }
  return at::cat(parts, 1);
}

/// Gathers twice with one machine, and returns the bytes that were borrowed.
std::int64_t gather_on(const Table& table, comm::Communicator& comm,
                       const runtime::RunOptions& options) {
  Gather run(prepared(table, comm.rank()), comm, options);
  std::int64_t borrowed = 0;
  for (int round = 0; round < 2; ++round) {
    if (round > 0) run.restart(comm, options);
    run.feed(kPage, part_of(table, comm.rank()));
    run.finish();
    EXPECT_TRUE(at::equal(run.output(kPage), whole(table))) << "rank " << comm.rank();
    const std::int64_t others = table.world - 1;
    EXPECT_EQ(run.moved().sent_bytes, others * part_of(table, comm.rank()).nbytes());
    EXPECT_EQ(run.moved().sent_messages, others);
    borrowed += run.moved().borrowed_bytes;
  }
  return borrowed;
}

TEST(PagesOnThreads, AreGatheredByEveryRank) {
  for (const int world : {1, 2, 3, 5}) {
    const Table table{.world = world, .pages = 2 * world + 1, .columns = 3, .rows = 4};
    comm::run_ranks(world, [&](comm::Communicator& comm) {
      const std::int64_t borrowed = gather_on(table, comm, {});
      EXPECT_EQ(borrowed > 0, world > 1) << "messages without a copy";
    });
  }
}

TEST(PagesOnThreads, AreGatheredOnALateDevice) {
  const Table table{.world = 4, .pages = 9, .columns = 2, .rows = 3};
  for (const std::uint64_t seed : {1, 2, 3}) {
    comm::run_ranks(table.world, [&](comm::Communicator& comm) {
      runtime::LateDevice late(10 * seed + static_cast<std::uint64_t>(comm.rank()));
      gather_on(table, comm, {.device = &late});
    });
  }
}

TEST(PagesOnThreads, AreRecordedOpByOp) {
  const Table table{.world = 2, .pages = 3, .columns = 2, .rows = 4};
  const std::string folder = testing::TempDir() + "armillary_pages_flight";
  std::filesystem::create_directories(folder);
  comm::run_ranks(table.world, [&](comm::Communicator& comm) {
    recorder::Recorder recorder(folder, {.world = table.world, .rank = comm.rank()});
    gather_on(table, comm, {.recorder = &recorder});
  });
  for (plan::Rank rank = 0; rank < table.world; ++rank) {
    const auto flight = recorder::read_flight(recorder::flight_path(folder, rank));
    const plan::RankProgram program = gather(table, rank);
    EXPECT_EQ(flight.ops.size(), 2 * program.ops.size()) << "two runs";
    for (const recorder::RecordedOp& recorded : flight.ops) {
      const plan::Op& op = program.ops[recorded.op.index];
      EXPECT_TRUE(recorded.complete);
      EXPECT_EQ(recorded.kind, kWords[op.kind].name);
      EXPECT_EQ(recorded.pass, "gather");
      EXPECT_EQ(recorded.op.peer, op.peer);
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(PagesOnThreads, NameTheirOpsInErrors) {
  const Table table{.world = 2, .pages = 3, .columns = 2, .rows = 4};
  EXPECT_EQ(describe(*prepared(table, 0), 2),
            "pages gather step 1: recv page{1} 32 bytes from rank 1 on lane 1");
}

}  // namespace
}  // namespace armillary::pages
