// The conformance suite on NCCL between processes that mpirun started, with its memory on GPUs. If
// there are fewer GPUs than processes, some share one. NCCL takes it if each process says that it
// is a host of its own (NCCL_HOSTID), and then their messages go through the network; or since 2.30
// if the environment has NCCL_MULTI_RANK_GPU_ENABLE=1.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "armillary/comm/mpi.h"
#include "armillary/comm/nccl.h"
#include "armillary/comm/nccl/run.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/mpi.h"
#include "tests/conformance/on_device.h"

namespace armillary::comm {
namespace {

constexpr NcclOptions kNcclOptions{.lanes = 5, .blocks_per_lane = 2};

/// Runs the body on the GPUs of the first `world` processes.
void run_on_gpus(int world, const Body& body) {
  const auto with_gpu = [&](Communicator& host) {
    const auto api = load_nccl();
    const auto with_device_memory = [&](Communicator& comm) {
      DeviceCopies copies(*api, host.rank() % api->devices());
      body(*on_device(comm, copies));
    };
    run_on_nccl(api.get(), "", host, with_device_memory, kNcclOptions);
  };
  run_processes(with_gpu, {.world = world});
}

Launcher on_gpus(const std::string& name, int most_ranks,
                 std::function<void(int, const Body&)> run) {
  return {.name = name,
          .run = std::move(run),
          .sees_sizes = false,
          .most_ranks = most_ranks,
          .start_s = 20,
          .strict_lanes = true};
}

std::vector<Launcher> gpu_launchers() {
  if (processes() < 2 || !nccl_missing().empty()) return {};
  if (load_nccl()->devices() < processes() && !std::getenv("NCCL_MULTI_RANK_GPU_ENABLE")) {
    setenv("NCCL_HOSTID", fmt::format("process {}", own_process()).c_str(), 1);
  }
  std::vector<Launcher> all = {on_gpus("whole", processes(), run_on_gpus)};
  if (processes() == 2) return all;
  all.push_back(on_gpus("split", processes() - 1, [](int world, const Body& body) {
    run_on_gpus(world + 1, [&](Communicator& comm) {
      const auto group = comm.split(comm.rank() < world ? 0 : -1, 0);
      if (group) body(*group);
    });
  }));
  return all;
}

INSTANTIATE_TEST_SUITE_P(MpiNccl, CommunicatorConformance, testing::ValuesIn(gpu_launchers()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace armillary::comm
