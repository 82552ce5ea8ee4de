// Times of messages and collectives, by this engine and by bare Gloo calls (../README.md).
//
//   c10d_overhead 2            starts itself as 2 processes
//
// Two ranks play ping-pong, in turns of both ways: the engine as a rank that waits for each message
// uses it, the engine as an executor uses it (it asks for several messages at once), and the sends
// and receives of a process group of PyTorch.
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "armillary/comm/c10d.h"
#include "armillary/comm/c10d/connect.h"
#include "armillary/comm/collectives.h"

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

/// Seconds of one message, from `repeats` round trips. `move` sends, or receives, all of `memory`.
template <class Move>
double ping_pong(Communicator& comm, std::vector<std::byte>& memory, int repeats,
                 const Move& move) {
  barrier(comm);
  const auto begin = Clock::now();
  for (int i = 0; i < 2 * repeats; ++i) move((i + comm.rank()) % 2 == 0, whole(std::span(memory)));
  return seconds_since(begin) / (2 * repeats);
}

void compare(Communicator& comm, c10d::Backend& bare) {
  const int peer = 1 - comm.rank();
  const auto start = [&](bool send, const Strided& part) {
    return send ? comm.isend(peer, 1, {&part, 1}) : comm.irecv(peer, 1, {&part, 1});
  };
  const auto by_wait = [&](bool send, const Strided& part) { comm.wait(start(send, part)); };
  // A request of another lane beside it, which is done at the end, makes it a wait for any of two.
  int last = 0;
  const Strided last_part = whole(std::span(&last, 1));
  const Request other = comm.rank() == 0 ? comm.isend(peer, 2, {&last_part, 1})
                                         : comm.irecv(peer, 3, {&last_part, 1});
  const auto by_wait_any = [&](bool send, const Strided& part) {
    const std::vector<Request> requests{start(send, part), other};
    comm.wait_any(requests);
  };
  const auto by_gloo = [&](bool send, const Strided& part) {
    const auto work = send ? gloo_send(bare, part.data, part.row_bytes, peer, 7)
                           : gloo_receive(bare, part.data, part.row_bytes, peer, 7);
    work->wait(kForever);
  };
  for (const int bytes : {8, 4096, 65536, 1 << 20, 1 << 26}) {
    std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
    const int repeats = bytes > 10'000'000 ? 3 : bytes > 100'000 ? 50 : 300;
    std::vector<double> waits;
    std::vector<double> wait_anys;
    std::vector<double> gloos;
    for (int turn = 0; turn < 9; ++turn) {
      waits.push_back(ping_pong(comm, memory, repeats, by_wait));
      gloos.push_back(ping_pong(comm, memory, repeats, by_gloo));
      wait_anys.push_back(ping_pong(comm, memory, repeats, by_wait_any));
    }
    if (comm.rank() > 0) continue;
    fmt::print("{:8} bytes: wait {:9.2f} us, wait_any {:9.2f} us, Gloo {:9.2f} us\n", bytes,
               1e6 * median(waits), 1e6 * median(wait_anys), 1e6 * median(gloos));
  }
  // The peers of the request that was beside the others.
  const Request answer = comm.rank() == 0 ? comm.isend(peer, 3, {&last_part, 1})
                                          : comm.irecv(peer, 2, {&last_part, 1});
  comm.wait(answer);
  comm.wait(other);
}

at::Tensor tensor_of(std::vector<float>& values) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())},
                       at::TensorOptions(at::kFloat));
}

/// Gathers and sums of all ranks, by messages and by Gloo.
void compare_collectives(Communicator& comm, c10d::Backend& bare) {
  for (const int count : {2, 16384, 1 << 18, 1 << 22}) {
    std::vector<float> mine(static_cast<std::size_t>(count), 1.0F);
    std::vector<float> all(mine.size() * static_cast<std::size_t>(comm.world()));
    std::vector<at::Tensor> one{tensor_of(mine)};
    at::Tensor gathered = tensor_of(all);
    std::vector<double> seconds[4];
    const auto time = [&](int side, const auto& call) {
      barrier(comm);
      const auto begin = Clock::now();
      call();
      seconds[side].push_back(seconds_since(begin));
    };
    for (int turn = 0; turn < 15; ++turn) {
      time(0, [&] { all_gather(comm, array(std::span(mine)), array(std::span(all))); });
      time(1, [&] { bare._allgather_base(gathered, one[0])->wait(); });
      time(2, [&] { all_reduce_sum(comm, std::span(mine)); });
      time(3, [&] { bare.allreduce(one)->wait(); });
    }
    if (comm.rank() > 0) continue;
    fmt::print(
        "{:8} fp32 of {} ranks: all_gather {:9.2f} us, Gloo {:9.2f} us; all_reduce {:9.2f} us, "
        "Gloo {:9.2f} us\n",
        count, comm.world(), 1e6 * median(seconds[0]), 1e6 * median(seconds[1]),
        1e6 * median(seconds[2]), 1e6 * median(seconds[3]));
  }
}

void run(int rank, int world, int port) {
  // The bare calls have connections and a thread of their own.
  const GlooStore store = open_store({.rank = rank, .world = world, .port = port + 1}, 30);
  const GlooBackend bare =
      make_gloo(store, rank, world, {.prefix = "bare/", .interface = "", .timeout = kForever});
  run_c10d_rank(
      [&](Communicator& comm) {
        if (world == 2) compare(comm, *bare);
        compare_collectives(comm, *bare);
      },
      {.rank = rank, .world = world, .port = port});
}

}  // namespace
}  // namespace armillary::comm

int main(int argc, char** argv) {
  const int world = argc > 1 ? std::atoi(argv[1]) : 2;
  const int port = 20000 + 2 * static_cast<int>(getpid() % 10000);
  int rank = 0;
  while (rank + 1 < world && fork() > 0) ++rank;
  armillary::comm::run(rank, world, port);
  while (wait(nullptr) > 0) {
  }
}
