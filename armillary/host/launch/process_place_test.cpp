// process_place_test.cpp: the place of a process in its run, from environments that are given as
// maps: variables of each launcher, of two at once, and with numbers that are wrong.
#include "armillary/host/launch/process_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "armillary/core/error.h"

namespace armillary::launch {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<ProcessPlace> find_in(const Environment& environment) {
  return find_place([&](const char* name) -> const char* {
    const auto entry = environment.find(name);
    return entry == environment.end() ? nullptr : entry->second.c_str();
  });
}

void expect_refusal(const Environment& environment, const std::string& text) {
  EXPECT_THAT([&] { find_in(environment); }, testing::ThrowsMessage<InvalidArgument>(text));
}

TEST(ProcessPlace, IsAbsentWithoutALauncher) {
  EXPECT_FALSE(find_in({}));
  EXPECT_FALSE(find_in({{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "here"}}));
}

TEST(ProcessPlace, IsThatOfEachLauncher) {
  const auto torchrun = find_in({{"RANK", "5"},
                                 {"WORLD_SIZE", "8"},
                                 {"LOCAL_RANK", "1"},
                                 {"LOCAL_WORLD_SIZE", "4"},
                                 {"MASTER_ADDR", "node7"},
                                 {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(torchrun);
  EXPECT_EQ(torchrun->rank, 5);
  EXPECT_EQ(torchrun->world, 8);
  EXPECT_EQ(torchrun->local_rank, 1);
  EXPECT_EQ(torchrun->local_world, 4);
  EXPECT_EQ(torchrun->address, "node7");
  EXPECT_EQ(torchrun->port, 29500);
  EXPECT_EQ(torchrun->engine, "c10d");

  const auto slurm =
      find_in({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"}, {"SLURM_STEP_ID", "0"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->rank, 2);
  EXPECT_EQ(slurm->local_world, 3);
  EXPECT_EQ(slurm->engine, "mpi");

  const auto open_mpi = find_in({{"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "6"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->launcher, "Open MPI");
  EXPECT_EQ(open_mpi->local_world, 2);

  const auto pmi = find_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}});
  ASSERT_TRUE(pmi);
  EXPECT_EQ(pmi->launcher, "PMI");
}

TEST(ProcessPlace, ThatDisagreesIsRefusedWithBothNames) {
  expect_refusal({{"RANK", "0"},
                  {"WORLD_SIZE", "2"},
                  {"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "2"}},
                 "launch: rank 0 of 2 by the variables of torchrun, rank 1 of 2 by those of Open "
                 "MPI; one launcher is required, or equal numbers");
  expect_refusal({{"RANK", "0"},
                  {"WORLD_SIZE", "2"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "4"},
                  {"SLURM_STEP_ID", "0"}},
                 "launch: rank 0 of 2 by the variables of torchrun, rank 0 of 4 by those of Slurm; "
                 "one launcher is required, or equal numbers");
  EXPECT_TRUE(find_in({{"RANK", "1"},
                       {"WORLD_SIZE", "2"},
                       {"SLURM_PROCID", "1"},
                       {"SLURM_NTASKS", "2"},
                       {"SLURM_STEP_ID", "0"}}));
}

TEST(ProcessPlace, OfATaskOfSlurmCountsTheTasksOfItsNode) {
  Environment task{{"SLURM_PROCID", "2"},
                   {"SLURM_NTASKS", "9"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1,2"},
                   {"SLURM_NODEID", "1"}};
  const std::map<std::string, int> of_nodes{{"0", 2}, {"1", 2}, {"2", 2}, {"3", 1}, {"4", 2}};
  for (const auto& [node, tasks] : of_nodes) {
    task["SLURM_NODEID"] = node;
    EXPECT_EQ(find_in(task)->local_world, tasks) << node;
  }
  task["SLURM_NODEID"] = "5";
  expect_refusal(task,
                 "launch: SLURM_STEP_TASKS_PER_NODE is '2(x3),1,2' (Slurm); counts from 1 to 9 are "
                 "required, such as 2(x3),1, with one for node 5");
  task["SLURM_NODEID"] = "0";
  for (const char* counts : {"x", "2(x", "2x3", "10", "0", "2;1", ","}) {
    task["SLURM_STEP_TASKS_PER_NODE"] = counts;
    EXPECT_THROW(find_in(task), InvalidArgument) << counts;
  }
}

// sbatch sets the variables of task 0 for its script.
TEST(ProcessPlace, OfAScriptOfSbatchIsNone) {
  EXPECT_FALSE(find_in({{"SLURM_PROCID", "0"},
                        {"SLURM_NTASKS", "4"},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_NODEID", "0"},
                        {"SLURM_TASKS_PER_NODE", "2(x2)"}}));
}

TEST(ProcessPlace, OfTwoLaunchersKnowsOfMpi) {
  Environment both{{"RANK", "1"},
                   {"WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(find_in(both)->engine, "c10d");
  EXPECT_TRUE(find_in(both)->has_mpi);
  EXPECT_FALSE(find_in({{"RANK", "1"}, {"WORLD_SIZE", "2"}})->has_mpi);
}

// srun starts one torchrun, or one daemon of mpirun, on each node.
TEST(ProcessPlace, OfALauncherThatSlurmStartedIsThatOfTheLauncher) {
  const auto torchrun = find_in({{"RANK", "5"},
                                 {"WORLD_SIZE", "8"},
                                 {"TORCHELASTIC_RUN_ID", "x"},
                                 {"SLURM_STEP_ID", "0"},
                                 {"SLURM_PROCID", "1"},
                                 {"SLURM_NTASKS", "2"}});
  ASSERT_TRUE(torchrun);
  EXPECT_EQ(torchrun->rank, 5);
  const auto open_mpi = find_in({{"OMPI_COMM_WORLD_RANK", "3"},
                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                 {"SLURM_STEP_ID", "0"},
                                 {"SLURM_PROCID", "0"},
                                 {"SLURM_NTASKS", "4"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->rank, 3);
  EXPECT_EQ(open_mpi->launcher, "Open MPI");
}

// A program that is started beside a run keeps the user's settings and loses the place of the rank.
TEST(ProcessPlace, IsKnownByItsVariables) {
  for (const std::string name :
       {"RANK", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri",
        "PMIX_RANK", "PMI_SIZE", "ARMILLARY_LISTEN_FD", "ARMILLARY_LAUNCH_FOLDER"}) {
    EXPECT_TRUE(is_place_variable(name)) << name;
  }
  for (const std::string name : {"PATH", "OMPI_MCA_btl_tcp_if_include", "OMPI_ALLOW_RUN_AS_ROOT",
                                 "GLOO_SOCKET_IFNAME", "ARMILLARY_ISA", "RANKS"}) {
    EXPECT_FALSE(is_place_variable(name)) << name;
  }
  setenv("PMI_RANK", "0", 1);
  const std::vector<std::string> all = environment_without_place();
  unsetenv("PMI_RANK");
  EXPECT_THAT(all, testing::Not(testing::Contains(testing::StartsWith("PMI_RANK="))));
  EXPECT_THAT(all, testing::Contains(testing::StartsWith("PATH=")));
}

TEST(ProcessPlace, WithBadNumbersIsRefused) {
  expect_refusal({{"RANK", "one"}, {"WORLD_SIZE", "2"}},
                 "launch: RANK is 'one' (torchrun); a whole number from 0 to 1 is required");
  expect_refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}},
                 "launch: RANK is '2' (torchrun); a whole number from 0 to 1 is required");
  expect_refusal({{"RANK", "0"}},
                 "launch: RANK is set and WORLD_SIZE is not (torchrun); both are required, or "
                 "neither");
  expect_refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "70000"}},
                 "launch: MASTER_PORT is '70000' (torchrun); a whole number from 1 to 65535 is "
                 "required");
}

}  // namespace
}  // namespace armillary::launch
