// fake_nccl.cpp: the calls of one rank: they add work to streams and communicators, and look for
// broken rules, such as a communicator that is freed before its end or that an abort leaves out.
// Tests read the list of them.
#include "armillary/comm/nccl/testing/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "armillary/comm/nccl/testing/fake_streams.h"
#include "armillary/core/error.h"

namespace armillary::comm {

using fake::Clique;
using fake::Comm;
using fake::FakeCollective;
using fake::MessageSide;
using fake::Stream;
using fake::StreamTask;

/// The libraries of one rank.
class FakeNccl : public NcclApi {
 public:
  FakeNccl(FakeGpus::State& state, int rank) : state_(state), rank_(rank) {}

  int devices() override { return state_.world; }
  void use_device(int device) override { device_ = device; }

  GpuStream make_stream() override {
    const auto lock = state_.lock();
    state_.streams.push_back(std::make_unique<Stream>());
    return reinterpret_cast<GpuStream>(state_.streams.back().get());
  }
  void drop_stream(GpuStream stream) override {
    // Its work goes on, as with CUDA.
    auto lock = state_.lock();
    state_.wait(lock, [&] { return of(stream)->tasks.empty(); });
    std::erase_if(state_.streams, [&](const auto& one) { return one.get() == of(stream); });
  }
  GpuEvent record(GpuStream stream) override {
    const auto lock = state_.lock();
    auto* const event = new std::shared_ptr<bool>(std::make_shared<bool>(false));
    state_.add(of(stream), [is_complete = *event] { *is_complete = true; });
    return reinterpret_cast<GpuEvent>(event);
  }
  bool is_done(GpuEvent event) override {
    const auto lock = state_.lock();
    return **reinterpret_cast<std::shared_ptr<bool>*>(event);
  }
  void drop_event(GpuEvent event) override {
    const auto lock = state_.lock();
    delete reinterpret_cast<std::shared_ptr<bool>*>(event);
  }
  std::byte* allocate(std::int64_t bytes, GpuStream /*stream*/) override {
    const auto lock = state_.lock();
    std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
    std::byte* const address = memory.data();
    state_.memory[address] = std::move(memory);
    state_.bytes_allocated += bytes;
    return address;
  }
  void release(std::byte* memory, GpuStream stream) override {
    const auto lock = state_.lock();
    state_.add(of(stream), [&state = state_, memory] {
      state.bytes_allocated -= static_cast<std::int64_t>(state.memory.at(memory).size());
      state.memory.erase(memory);
    });
  }
  void copy(const RowCopy& rows, GpuStream stream) override {
    const auto lock = state_.lock();
    state_.add(of(stream), [rows] {
      for (std::int64_t row = 0; row < rows.rows; ++row) {
        std::memcpy(rows.to + row * rows.to_stride, rows.from + row * rows.from_stride,
                    static_cast<std::size_t>(rows.row_bytes));
      }
    });
  }

  NcclId make_id() override {
    const auto lock = state_.lock();
    NcclId id{};
    const std::int64_t number = state_.next_id++;
    std::memcpy(id.bytes.data(), &number, sizeof(number));
    return id;
  }
  NcclComm begin_init(const NcclInit& init) override {
    const auto lock = state_.lock();
    std::int64_t number = 0;
    std::memcpy(&number, init.id.bytes.data(), sizeof(number));
    Clique& clique = state_.cliques[number];
    auto& comm = state_.comms.emplace_back(std::make_unique<Comm>());
    comm->clique = &clique;
    comm->device = device_;
    comm->rank = init.rank;
    comm->world = init.world;
    comm->not_before = state_.later();
    clique.comms[init.rank] = comm.get();
    ++state_.comms_made;
    state_.wake();
    return reinterpret_cast<NcclComm>(comm.get());
  }
  bool ready(NcclComm comm) override {
    const auto lock = state_.lock();
    if (state_.has_failed(rank_)) fail<CommError>("nccl: a communicator: the network broke");
    return !of(comm)->starting;
  }
  void begin_group() override {
    if (group_) {
      const auto lock = state_.lock();
      state_.break_rule("a group in a group that was left open");
    }
    group_ = std::make_unique<StreamTask>();
    group_comm_ = nullptr;
  }
  void end_group() override {
    const auto lock = state_.lock();
    Comm& comm = *group_comm_;
    state_.expect_ready(comm, "a group");
    ++state_.groups[rank_];
    for (const auto& side : group_->sides) comm.knocked.insert(side->peer);
    comm.kernel = std::move(group_);
    comm.stream = group_stream_;
    comm.starting = true;
    comm.not_before = state_.later();
    state_.wake();
  }
  void drop_group() noexcept override { group_.reset(); }
  void send(NcclComm comm, GpuStream stream, std::span<const std::byte> bytes, int peer) override {
    if (rank_ == state_.options.failing_sender && sends_++ == state_.options.sends_until_failure) {
      fail<CommError>("nccl: ncclSend: the cable is cut");
    }
    add(comm, stream, {true, peer, {const_cast<std::byte*>(bytes.data()), bytes.size()}});
  }
  void receive(NcclComm comm, GpuStream stream, std::span<std::byte> bytes, int peer) override {
    add(comm, stream, {false, peer, bytes});
  }
  void all_reduce(NcclComm comm, GpuStream stream, const Array& values,
                  Reduction reduction) override {
    add(comm, stream, {FakeCollective::CollectiveKind::AllReduce, values, values, reduction});
  }
  void reduce_scatter(NcclComm comm, GpuStream stream, const Array& all, const Array& mine,
                      Reduction reduction) override {
    add(comm, stream, {FakeCollective::CollectiveKind::ReduceScatter, all, mine, reduction});
  }
  void all_gather(NcclComm comm, GpuStream stream, const Array& mine, const Array& all) override {
    add(comm, stream, {FakeCollective::CollectiveKind::AllGather, mine, all});
  }
  void broadcast(NcclComm comm, GpuStream stream, const Array& values, int root) override {
    add(comm, stream,
        {FakeCollective::CollectiveKind::Broadcast, values, values, Reduction::Sum, root});
  }

  void begin_end(NcclComm comm) override {
    const auto lock = state_.lock();
    Comm& own = *of(comm);
    state_.expect_ready(own, "the end of a communicator");
    own.ending = own.starting = true;
    own.not_before = state_.later();
    ++own.clique->ended;
    state_.wake();
  }
  void drop(NcclComm comm) override {
    const auto lock = state_.lock();
    if (!of(comm)->ending || of(comm)->starting) {
      state_.break_rule("a communicator is freed before its end");
    }
    state_.forget(of(comm));
  }
  void abort(std::span<const NcclComm> comms) override {
    auto lock = state_.lock();
    if (group_) state_.break_rule("an abort in a group that was left open");
    std::set<const Comm*> members;
    for (const NcclComm comm : comms) members.insert(of(comm));
    for (const auto& comm : state_.comms) {
      if (comm->device == device_ && !comm->aborted && !members.contains(comm.get())) {
        state_.break_rule("an abort leaves out a communicator of the device");
      }
    }
    for (const NcclComm comm : comms) {
      of(comm)->aborted = true;
      of(comm)->kernel.reset();
      forget_kernels(*of(comm));
    }
    state_.comms_aborted += static_cast<int>(comms.size());
    state_.wake();
    state_.wait(lock, [&] { return !state_.runs_kernel_of(members); });
    for (const NcclComm comm : comms) state_.forget(of(comm));
  }

 private:
  static Stream* of(GpuStream stream) { return reinterpret_cast<Stream*>(stream); }
  static Comm* of(NcclComm comm) { return reinterpret_cast<Comm*>(comm); }

  void add(NcclComm comm, GpuStream stream, const MessageSide& side) {
    group_->sides.push_back(std::make_shared<MessageSide>(side));
    begin_kernel(comm, stream);
  }
  void add(NcclComm comm, GpuStream stream, const FakeCollective& collective) {
    group_->collective = collective;
    begin_kernel(comm, stream);
  }
  void begin_kernel(NcclComm comm, GpuStream stream) {
    group_->kernel_of = of(comm);
    group_comm_ = of(comm);
    group_stream_ = of(stream);
  }
  /// Takes the memory of this rank's kernels from its peers.
  static void forget_kernels(const Comm& comm) {
    for (auto& [pair, sides] : comm.clique->sends) {
      if (pair.first == comm.rank) sides.clear();
    }
    for (auto& [pair, sides] : comm.clique->receives) {
      if (pair.second == comm.rank) sides.clear();
    }
    std::erase_if(comm.clique->collectives,
                  [&](const StreamTask* task) { return task->kernel_of == &comm; });
  }

  FakeGpus::State& state_;
  const int rank_;
  int device_ = 0;
  int sends_ = 0;
  std::unique_ptr<StreamTask> group_;
  Comm* group_comm_ = nullptr;
  Stream* group_stream_ = nullptr;
};

FakeGpus::FakeGpus(int world, const FakeGpuOptions& options)
    : state_(std::make_unique<State>(world, options)) {}
FakeGpus::~FakeGpus() = default;

std::unique_ptr<NcclApi> FakeGpus::api(int rank) {
  return std::make_unique<FakeNccl>(*state_, rank);
}

int FakeGpus::comms_made() const {
  const auto lock = state_->lock();
  return state_->comms_made;
}
int FakeGpus::comms_alive() const {
  const auto lock = state_->lock();
  return static_cast<int>(state_->comms.size());
}
int FakeGpus::comms_aborted() const {
  const auto lock = state_->lock();
  return state_->comms_aborted;
}
std::int64_t FakeGpus::bytes_allocated() const {
  const auto lock = state_->lock();
  return state_->bytes_allocated;
}
std::vector<std::string> FakeGpus::broken_rules() const {
  const auto lock = state_->lock();
  return state_->broken_rules;
}

}  // namespace armillary::comm
