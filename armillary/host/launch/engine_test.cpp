// engine_test.cpp: the choice of an engine by flags and by places that are made up: the
// launcher decides unless a flag does, and the two may not disagree.
#include "armillary/host/launch/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "armillary/core/error.h"

namespace armillary::launch {
namespace {

using testing::HasSubstr;

const std::optional<ProcessPlace> kAlone;
const std::optional<ProcessPlace> kMpirun = ProcessPlace{.rank = 1,
                                                         .world = 4,
                                                         .local_world = 2,
                                                         .launcher = "Open MPI",
                                                         .engine = "mpi",
                                                         .has_mpi = true};
const std::optional<ProcessPlace> kTorchrun = ProcessPlace{
    .rank = 0, .world = 2, .address = "h", .port = 29500, .launcher = "torchrun", .engine = "c10d"};
const std::optional<ProcessPlace> kSlurm =
    ProcessPlace{.rank = 0, .world = 2, .launcher = "Slurm", .engine = "mpi", .has_mpi = true};

EngineChoice choose(const EngineFlags& flags, const std::optional<ProcessPlace>& place) {
  return choose_engine(flags, place, true, {place ? place->world : 4, "4 ranks"});
}

void expect_no_choice(const EngineFlags& flags, const std::optional<ProcessPlace>& place,
                      const std::string& text, bool has_mpi = true) {
  EXPECT_THAT(
      [&] {
        choose_engine(flags, place, has_mpi, {place ? place->world : 2, ""});
      },
      testing::ThrowsMessage<InvalidArgument>(HasSubstr(text)));
}

TEST(Engine, IsThatOfTheLauncher) {
  EXPECT_EQ(choose({}, kAlone).engine, Engine::Threads);
  EXPECT_EQ(choose({}, kMpirun).engine, Engine::Mpi);
  EXPECT_EQ(choose({}, kTorchrun).engine, Engine::C10d);
  EXPECT_EQ(choose({}, kSlurm).engine, Engine::Mpi);

  const EngineChoice mpi = choose({.engine = "mpi"}, kMpirun);
  EXPECT_FALSE(mpi.is_first());
  EXPECT_EQ(mpi.local_world(4), 2);
  const EngineChoice threads = choose({.engine = "threads"}, kAlone);
  EXPECT_TRUE(threads.is_first());
  EXPECT_EQ(threads.local_world(4), 4);
}

TEST(Engine, TakesAPlaceByHandBeforeTheLaunchers) {
  const EngineChoice choice =
      choose_engine({.rank = "1", .master = "10.0.0.1:29400"}, kMpirun, true, {3, "3 ranks"});
  EXPECT_EQ(choice.engine, Engine::C10d);
  EXPECT_EQ(choice.place->rank, 1);
  EXPECT_EQ(choice.place->world, 3);
  EXPECT_EQ(choice.place->address, "10.0.0.1");
  EXPECT_EQ(choice.place->port, 29400);
}

TEST(Engine, TakesAnAddressInBrackets) {
  for (const char* master : {"[::1]:29400", "::1:29400"}) {
    const EngineChoice choice =
        choose_engine({.rank = "1", .master = master}, kAlone, true, {3, "3 ranks"});
    EXPECT_EQ(choice.place->address, "::1");
    EXPECT_EQ(choice.place->port, 29400);
  }
}

TEST(Engine, IsMpiOnRequestIfAnMpiLauncherGaveTheSameNumbers) {
  std::optional<ProcessPlace> both = kTorchrun;
  both->has_mpi = true;
  EXPECT_EQ(choose({.engine = "mpi"}, both).engine, Engine::Mpi);
  EXPECT_EQ(choose({}, both).engine, Engine::C10d);
}

TEST(Engine, ThatDoesNotFitTheLauncherIsRefused) {
  expect_no_choice({.engine = "threads"}, kMpirun,
                   "--engine threads in rank 1 of 4 that Open MPI started, each of which would do "
                   "the whole run; --engine mpi is required, or one process");
  expect_no_choice({.engine = "mpi"}, kAlone,
                   "--engine mpi in a process that no launcher started; `armillary launch");
  expect_no_choice({.engine = "c10d"}, kAlone, "--engine c10d in a process that no launcher");
  expect_no_choice({.engine = "mpi"}, kTorchrun,
                   "--engine mpi in a process that torchrun started; mpirun or srun is required, "
                   "or --engine c10d");
  expect_no_choice({.engine = "c10d"}, kMpirun,
                   "--engine c10d without a meeting point: Open MPI sets no MASTER_ADDR");
  expect_no_choice({}, kMpirun, "--engine mpi in a build without MPI", false);
  expect_no_choice({.engine = "mip"}, kAlone,
                   "--engine mip; auto, threads, mpi or c10d is required; nearest: mpi");
  expect_no_choice(
      {.engine = "nccl"}, kMpirun,
      "--engine nccl carries what lies on GPUs, and this program computes on CPUs; mpi "
      "or c10d is required");
}

TEST(Engine, RefusesFlagsThatAreIncompleteOrNoNumbers) {
  expect_no_choice({.rank = "1"}, kAlone,
                   "--rank '1', --master not given; both are required, or none");
  expect_no_choice({.rank = "2", .master = "h:1"}, kAlone,
                   "--rank is '2'; a whole number from 0 to 1 is required");
  expect_no_choice({.rank = "0", .master = "h"}, kAlone,
                   "--master is 'h'; HOST:PORT or [ADDRESS]:PORT is required");
  for (const char* master : {"[::1:80", "::1]:80", "[]:80", ":80", "a[::1]:80", "[[::1]]:80"}) {
    expect_no_choice({.rank = "0", .master = master}, kAlone, "HOST:PORT or [ADDRESS]:PORT is");
  }
  expect_no_choice({.rank = "0", .master = "h:0"}, kAlone,
                   "port of --master is '0'; a whole number from 1 to 65535 is required");
  expect_no_choice({.engine = "mpi", .rank = "0", .master = "h:1"}, kAlone,
                   "--rank and --master with --engine mpi; c10d is required");
}

TEST(Engine, HasAsManyProcessesAsRanks) {
  EXPECT_THAT(
      [] {
        choose_engine({}, kMpirun, true, {2, "parallelism.context_parallel_degree = 2"});
      },
      testing::ThrowsMessage<InvalidArgument>(
          "4 processes that Open MPI started, and parallelism.context_parallel_degree = 2; equal "
          "numbers are required; nearest: -n 2"));
}

}  // namespace
}  // namespace armillary::launch
