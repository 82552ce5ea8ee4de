// Times of messages and gathers, by this engine and by bare MPI calls (../README.md).
//
//   mpirun -n 2 mpi_overhead
//
// All ranks gather; then two of them play ping-pong, in turns of both ways. Last comes the part of
// a large message's time that remains visible when both ranks compute meanwhile, for several
// intervals of the helper thread. In the comparisons the helper is idle: bare calls are made
// without the lock that it needs.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/mpi.h"

namespace armillary::comm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Memory of `rows` rows of `row_bytes`, `stride` bytes apart, and its type for MPI.
struct StridedRows {
  int rows;
  int row_bytes;
  int stride;
};

/// Seconds of one message, from `repeats` round trips.
double by_engine(Communicator& comm, const StridedRows& shape, std::vector<std::byte>& memory,
                 int repeats) {
  const Strided part{memory.data(), shape.rows, shape.row_bytes, shape.stride};
  const int peer = 1 - comm.rank();
  const auto begin = Clock::now();
  for (int i = 0; i < 2 * repeats; ++i) {
    const bool send = (i + comm.rank()) % 2 == 0;
    comm.wait(send ? comm.isend(peer, 1, {&part, 1}) : comm.irecv(peer, 1, {&part, 1}));
  }
  return seconds_since(begin) / (2 * repeats);
}

double by_mpi(Communicator& comm, const StridedRows& shape, std::vector<std::byte>& memory,
              int repeats) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_create_hvector(shape.rows, shape.row_bytes, shape.stride, MPI_BYTE, &type);
  MPI_Type_commit(&type);
  const int peer = 1 - comm.rank();
  const auto begin = Clock::now();
  for (int i = 0; i < 2 * repeats; ++i) {
    MPI_Request request = MPI_REQUEST_NULL;
    if ((i + comm.rank()) % 2 == 0) {
      MPI_Isend(memory.data(), 1, type, peer, 0, MPI_COMM_WORLD, &request);
    } else {
      MPI_Irecv(memory.data(), 1, type, peer, 0, MPI_COMM_WORLD, &request);
    }
    // MPI_Wait keeps its core, which makes it slow where ranks share cores.
    int is_complete = 0;
    while (MPI_Test(&request, &is_complete, MPI_STATUS_IGNORE), !is_complete)
      std::this_thread::yield();
  }
  const double result = seconds_since(begin) / (2 * repeats);
  MPI_Type_free(&type);
  return result;
}

void compare(Communicator& comm) {
  const std::vector<StridedRows> shapes = {
      {1, 8, 8},        {1, 4096, 4096},   {1, 65536, 65536},  {1, 1 << 20, 1 << 20},
      {1, 1 << 26, 1},  {4096, 256, 1024}, {1024, 1024, 4096}, {65536, 256, 1024},
      {16384, 64, 256},
  };
  for (const StridedRows& shape : shapes) {
    std::vector<std::byte> memory(
        std::max<std::size_t>(static_cast<std::size_t>(shape.rows) * shape.stride,
                              static_cast<std::size_t>(shape.row_bytes)));
    const double bytes = 1.0 * shape.rows * shape.row_bytes;
    const int repeats = bytes > 1e7 ? 5 : bytes > 1e5 ? 50 : 500;
    std::vector<double> engine;
    std::vector<double> bare;
    for (int turn = 0; turn < 9; ++turn) {
      barrier(comm);
      engine.push_back(by_engine(comm, shape, memory, repeats));
      barrier(comm);
      bare.push_back(by_mpi(comm, shape, memory, repeats));
    }
    if (comm.rank() == 0) {
      fmt::print("{:6} rows of {:8} bytes: engine {:9.2f} us, MPI {:9.2f} us\n", shape.rows,
                 shape.row_bytes, 1e6 * median(engine), 1e6 * median(bare));
    }
  }
}

/// Gathers of all ranks, by messages and by MPI.
void compare_gathers(Communicator& comm) {
  for (const int bytes : {8, 65536, 1 << 20, 1 << 24}) {
    std::vector<std::byte> mine(static_cast<std::size_t>(bytes));
    std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(comm.world()));
    std::vector<double> engine;
    std::vector<double> bare;
    for (int turn = 0; turn < 15; ++turn) {
      barrier(comm);
      auto begin = Clock::now();
      comm.collectives().all_gather(array(std::span(std::as_const(mine))), array(std::span(all)));
      engine.push_back(seconds_since(begin));
      barrier(comm);
      begin = Clock::now();
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Iallgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, MPI_COMM_WORLD,
                     &request);
      int is_complete = 0;
      while (MPI_Test(&request, &is_complete, MPI_STATUS_IGNORE), !is_complete)
        std::this_thread::yield();
      bare.push_back(seconds_since(begin));
    }
    if (comm.rank() == 0) {
      fmt::print("all_gather of {:8} bytes from {} ranks: engine {:9.2f} us, MPI {:9.2f} us\n",
                 bytes, comm.world(), 1e6 * median(engine), 1e6 * median(bare));
    }
  }
}

/// Both ranks exchange 32 MiB while they compute for `compute_s`; returns the seconds beyond that.
double exposed(Communicator& comm, double compute_s) {
  std::vector<std::byte> out(1 << 25);
  std::vector<std::byte> in(out.size());
  const Strided out_part = whole(std::span(out));
  const Strided in_part = whole(std::span(in));
  std::vector<double> seconds;
  for (int turn = 0; turn < 15; ++turn) {
    barrier(comm);
    const int peer = 1 - comm.rank();
    const std::vector<Message> batch = {{Direction::Send, peer, 1, {&out_part, 1}},
                                        {Direction::Receive, peer, 1, {&in_part, 1}}};
    const auto begin = Clock::now();
    const auto requests = comm.start(batch);
    while (seconds_since(begin) < compute_s) {
    }
    comm.wait_all(requests);
    seconds.push_back(seconds_since(begin) - compute_s);
  }
  return median(seconds);
}

}  // namespace
}  // namespace armillary::comm

int main() {
  using namespace armillary::comm;
  run_mpi_rank(compare_gathers, {.helper_interval_s = 0.5});
  run_mpi_rank(compare, {.world = 2, .helper_interval_s = 0.5});
  for (const double interval_s : {0.5, 0.01, 0.001, 0.0002}) {
    run_mpi_rank(
        [&](Communicator& comm) {
          const double alone = exposed(comm, 0);
          const double rest = exposed(comm, 0.05);
          if (comm.rank() > 0) return;
          fmt::print(
              "helper every {:6.1f} ms: 32 MiB each way {:6.2f} ms, beside 50 ms of "
              "compute {:6.2f} ms\n",
              1e3 * interval_s, 1e3 * alone, 1e3 * rest);
        },
        {.world = 2, .helper_interval_s = interval_s});
  }
}
