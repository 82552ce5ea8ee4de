// The libraries of this machine under the calls that the engine makes of them (comm/nccl/api.h),
// and the engine as one rank alone: what one GPU is enough for. Without a GPU they say so.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/comm/nccl.h"
#include "armillary/comm/nccl/run.h"
#include "armillary/core/error.h"
#include "tests/conformance/messages.h"
#include "tests/conformance/on_device.h"

namespace armillary::comm {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

/// A function of CUDA that the engine does not need, in the library that it has loaded.
template <class Function>
Function cuda(const char* name) {
  for (const char* library : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}) {
    if (void* const handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD)) {
      return reinterpret_cast<Function>(dlsym(handle, name));
    }
  }
  return nullptr;
}

std::int64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  cuda<int (*)()>("cudaDeviceSynchronize")();
  cuda<int (*)(std::size_t*, std::size_t*)>("cudaMemGetInfo")(&free, &total);
  return static_cast<std::int64_t>(free);
}

/// The error that the next look at CUDA's last one would find.
int last_error() {
  return cuda<int (*)()>("cudaPeekAtLastError")();
}

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = std::byte(i * 31 + i / 251 + 1);
  return bytes;
}

/// One communicator of one rank, and a stream, on device 0.
class NcclDevice : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = nccl_missing();
    if (!missing.empty()) {
      std::printf("[SKIP] no CUDA device: %s\n", missing.c_str());
      GTEST_SKIP() << missing;
    }
    api_ = load_nccl();
    api_->use_device(0);
    stream_ = api_->make_stream();
    copies_ = std::make_unique<DeviceCopies>(*api_, 0);
  }
  void TearDown() override {
    if (!api_) return;
    copies_.reset();
    api_->drop_stream(stream_);
    EXPECT_EQ(last_error(), 0) << "an error of CUDA that the next kernel launch would report";
  }

  NcclComm make_comm() {
    const NcclComm comm = begin_comm(1);
    wait_ready(comm);
    return comm;
  }
  NcclComm begin_comm(int world) {
    return api_->begin_init({.id = api_->make_id(), .rank = 0, .world = world, .most_blocks = 8});
  }
  void wait_ready(NcclComm comm) const {
    const auto begin = Clock::now();
    while (!api_->ready(comm) && seconds_since(begin) < 60) std::this_thread::yield();
    ASSERT_TRUE(api_->ready(comm));
  }
  void end_comm(NcclComm comm) const {
    api_->begin_end(comm);
    wait_ready(comm);
    api_->drop(comm);
  }
  void wait_stream() const {
    const GpuEvent event = api_->record(stream_);
    const auto begin = Clock::now();
    while (!api_->is_done(event) && seconds_since(begin) < 60) std::this_thread::yield();
    EXPECT_TRUE(api_->is_done(event));
    api_->drop_event(event);
  }
  /// Runs a group of calls until its work is over.
  void run_group(NcclComm comm, const std::function<void()>& calls) const {
    api_->begin_group();
    calls();
    api_->end_group();
    wait_ready(comm);
    wait_stream();
  }
  void send_to_self(NcclComm comm, std::size_t size) const {
    std::vector<std::byte> out = pattern(size);
    std::vector<std::byte> in(size);
    const Strided host_out = whole(std::span(out));
    const Strided host_in = whole(std::span(in));
    const Strided from = copies_->allocate(host_out);
    const Strided to = copies_->allocate(host_in);
    copies_->copy(host_out, from);
    run_group(comm, [&] {
      api_->send(comm, stream_, {from.data, size}, 0);
      api_->receive(comm, stream_, {to.data, size}, 0);
    });
    copies_->copy(to, host_in);
    EXPECT_TRUE(in == out) << size << " bytes";
    copies_->release(from);
    copies_->release(to);
  }

  std::unique_ptr<NcclApi> api_;
  GpuStream stream_ = nullptr;
  std::unique_ptr<DeviceCopies> copies_;
};

TEST_F(NcclDevice, SendsToItself) {
  const NcclComm comm = make_comm();
  for (const std::size_t size : {1u, 3u, 4097u, 65537u, 1u << 26}) send_to_self(comm, size);
  end_comm(comm);
}

TEST_F(NcclDevice, SendsMoreBytesThanAnIntCounts) {
  if (!std::getenv("ARMILLARY_TEST_ALL")) GTEST_SKIP() << "takes 4 GiB: ./dev test --all";
  const NcclComm comm = make_comm();
  send_to_self(comm, (std::size_t{1} << 31) + 12345);
  end_comm(comm);
}

TEST_F(NcclDevice, AGroupHasManyMessages) {
  constexpr int kMessages = 100;
  const NcclComm comm = make_comm();
  std::vector<int> out = numbers(kMessages * kMessages, 0);
  std::vector<int> in(out.size());
  const Strided host_out = whole(std::span(out));
  const Strided host_in = whole(std::span(in));
  const Strided from = copies_->allocate(host_out);
  const Strided to = copies_->allocate(host_in);
  copies_->copy(host_out, from);
  copies_->copy(host_in, to);
  // Message i has i ints; those of a pair meet in order.
  std::vector<std::size_t> begins(kMessages);
  for (int i = 1; i < kMessages; ++i) begins[i] = begins[i - 1] + (i - 1) * sizeof(int);
  run_group(comm, [&] {
    for (int i = 1; i < kMessages; ++i) {
      api_->send(comm, stream_, {from.data + begins[i], i * sizeof(int)}, 0);
    }
    for (int i = 1; i < kMessages; ++i) {
      api_->receive(comm, stream_, {to.data + begins[i], i * sizeof(int)}, 0);
    }
  });
  copies_->copy(to, host_in);
  constexpr int kSent = kMessages * (kMessages - 1) / 2;
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + kSent, in.begin()));
  EXPECT_EQ(std::count(in.begin() + kSent, in.end(), 0), kMessages * kMessages - kSent);
  copies_->release(from);
  copies_->release(to);
  end_comm(comm);
}

TEST_F(NcclDevice, CopiesRowsWithAnyStride) {
  // Rows of 5 bytes, 7 apart, into rows that touch each other, and back into rows 11 apart.
  constexpr std::size_t kRows = 10000;
  std::vector<std::byte> bytes = pattern(kRows * 7);
  std::vector<std::byte> back(kRows * 11 - 6);
  const Strided spread = {bytes.data(), kRows, 5, 7};
  const Strided packed_shape = {nullptr, kRows, 5, 5};
  const Strided target = {back.data(), kRows, 5, 11};
  const Strided packed = copies_->allocate(packed_shape);
  const Strided wide = copies_->allocate(target);
  copies_->copy(whole(std::span(back)), {wide.data, 1, kRows * 11 - 6, kRows * 11 - 6, 0});
  const auto is_gap = [&](std::size_t row) {
    return row == kRows - 1 || back[row * 11 + 5] == std::byte(0);
  };
  copies_->copy(spread, packed);
  copies_->copy(packed, wide);
  copies_->copy(wide, target);
  for (std::size_t row = 0; row < kRows; ++row) {
    ASSERT_EQ(std::memcmp(&back[row * 11], &bytes[row * 7], 5), 0) << row;
    ASSERT_TRUE(is_gap(row)) << row;
  }
  copies_->release(packed);
  copies_->release(wide);
}

// Farther than CUDA's widest pitch, as it is documented.
TEST_F(NcclDevice, CopiesRowsThatAreFarApart) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 4096;
  if (free_bytes() < 3 * kStride) GTEST_SKIP() << "needs 6 GiB of the device";
  std::vector<std::byte> bytes = pattern(std::size_t{3} * 64);
  const Strided packed = {bytes.data(), 3, 64, 64};
  const Strided far = copies_->allocate({nullptr, 3, 64, kStride});
  copies_->copy(packed, far);
  std::vector<std::byte> back(bytes.size());
  copies_->copy(far, {back.data(), 3, 64, 64});
  EXPECT_EQ(back, bytes);
  copies_->release(far);
}

// The communicator would wait for a second rank for ever.
TEST_F(NcclDevice, AnAbortEndsACommunicatorThatIsNotMade) {
  const auto begin = Clock::now();
  const NcclComm comm = begin_comm(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(api_->ready(comm));
  api_->abort({&comm, 1});
  EXPECT_LT(seconds_since(begin), 60);
  const NcclComm next = make_comm();
  send_to_self(next, 1000);
  end_comm(next);
}

TEST_F(NcclDevice, AnAbortFreesAllThatItNames) {
  std::vector<std::int64_t> free;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const std::vector<NcclComm> comms = {make_comm(), make_comm(), make_comm()};
    for (const NcclComm comm : comms) send_to_self(comm, 1000);
    api_->abort(comms);
    free.push_back(free_bytes());
  }
  EXPECT_EQ(free[3], free[1]);
}

// A call of NCCL that fails leaves its group open; whatever follows would belong to it.
TEST_F(NcclDevice, AGroupWithAnErrorIsDropped) {
  const std::int64_t before = [&] {
    end_comm(make_comm());
    return free_bytes();
  }();
  for (int repeat = 0; repeat < 3; ++repeat) {
    const std::vector<NcclComm> comms = {make_comm(), make_comm()};
    send_to_self(comms[0], 1000);
    api_->begin_group();
    EXPECT_THAT([&] { api_->send(comms[0], stream_, {}, 7); },
                testing::ThrowsMessage<CommError>(ContainsRegex("nccl: ncclSend: invalid")));
    api_->drop_group();
    api_->abort(comms);
    const NcclComm next = make_comm();
    send_to_self(next, 1000);
    end_comm(next);
  }
  EXPECT_EQ(free_bytes(), before);
}

// Others of this thread look at CUDA's last error after their own calls.
TEST_F(NcclDevice, AnEventThatIsNotDoneIsNoError) {
  constexpr std::int64_t kSize = std::int64_t{1} << 30;
  const Strided shape = {nullptr, 1, kSize, kSize};
  const Strided from = copies_->allocate(shape);
  const Strided to = copies_->allocate(shape);
  for (int i = 0; i < 50; ++i) {
    api_->copy({to.data, kSize, from.data, kSize, kSize, 1}, stream_);
  }
  const GpuEvent event = api_->record(stream_);
  EXPECT_FALSE(api_->is_done(event));
  EXPECT_EQ(last_error(), 0);
  wait_stream();
  EXPECT_TRUE(api_->is_done(event));
  api_->drop_event(event);
  copies_->release(from);
  copies_->release(to);
}

// One rank of the engine.

class NcclAlone : public NcclDevice {
 protected:
  /// Runs the body as the one rank of a group on device 0, with the memory of the test there.
  static void run(const std::function<void(Communicator&, DeviceCopies&)>& body,
                  const NcclOptions& options = {}) {
    const auto api = load_nccl();
    run_ranks(1, [&](Communicator& host) {
      run_on_nccl(
          api.get(), "", host,
          [&](Communicator& comm) {
            DeviceCopies copies(*api, 0);
            body(comm, copies);
          },
          options);
    });
  }
  /// Sums of one rank, of numbers on the device, in a group.
  static void expect_works(Communicator& comm, DeviceCopies& copies) {
    std::vector<float> values(1000, 2.5F);
    all_reduce_sum(*on_device(comm, copies), values);
    EXPECT_EQ(values, std::vector<float>(1000, 2.5F));
    barrier(comm);
  }
};

TEST_F(NcclAlone, Splits) {
  run([](Communicator& comm, DeviceCopies& copies) {
    EXPECT_EQ(comm.world(), 1);
    EXPECT_EQ(comm.split(-1, 0), nullptr);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto part = comm.split(repeat, 0);
      EXPECT_EQ(part->world(), 1);
      expect_works(*part, copies);
      const auto again = part->split(0, 0);
      expect_works(*again, copies);
      expect_works(comm, copies);
    }
  });
}

TEST_F(NcclAlone, RefusesWhatItDoesNotTake) {
  run([](Communicator& comm, DeviceCopies& copies) {
    std::vector<float> values(4);
    const Strided host = whole(std::span(values));
    const Strided device = copies.allocate(host);
    const Array on_host = array(std::span(values));
    const Array there = {device.data, 4, ElementType::Fp32, 0};
    EXPECT_THAT([&] { all_gather(comm, on_host, there); },
                testing::ThrowsMessage<InvalidArgument>(
                    "all_gather: memory of devices 0 and -1 (-1 is the host); one is required"));
    EXPECT_THAT(
        [&] {
          comm.isend(0, 0, {&device, 1});
        },
        testing::ThrowsMessage<InvalidArgument>(HasSubstr("is this rank itself")));
    copies.release(device);
    expect_works(comm, copies);
  });
  EXPECT_THAT([&] { run([](Communicator&, DeviceCopies&) {}, {.device = api_->devices()}); },
              testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr(fmt::format("run_on_nccl: device {0} of {0}; one of them, or -1, is "
                                        "required",
                                        api_->devices()))));
}

TEST_F(NcclAlone, AFailureGivesBackTheMemory) {
  std::vector<std::int64_t> free;
  for (int repeat = 0; repeat < 4; ++repeat) {
    EXPECT_THROW(run([](Communicator& comm, DeviceCopies& copies) {
                   const auto part = comm.split(0, 0);
                   expect_works(*part, copies);
                   throw std::out_of_range("enough");
                 }),
                 std::out_of_range);
    EXPECT_THROW(run([](Communicator& comm, DeviceCopies& copies) {
                   expect_works(comm, copies);
                   comm.abort("out of paper");
                   barrier(comm);
                 }),
                 CommError);
    run([](Communicator& comm, DeviceCopies& copies) { expect_works(comm, copies); });
    free.push_back(free_bytes());
  }
  EXPECT_EQ(free[3], free[1]);
}

// Two ranks of this process on one GPU, which NCCL refuses, unless it is told not to.
TEST_F(NcclAlone, TwoRanksOfOneGpuAreRefused) {
  if (std::getenv("NCCL_MULTI_RANK_GPU_ENABLE")) GTEST_SKIP() << "allowed by the environment";
  EXPECT_THAT(
      [] {
        run_ranks(2, [](Communicator& host) {
          const auto api = load_nccl();
          run_on_nccl(api.get(), "", host, [](Communicator&) {}, {.device = 0});
        });
      },
      testing::ThrowsMessage<CommError>(ContainsRegex("failed: nccl: .*(Duplicate|same) GPU")));
}

}  // namespace
}  // namespace armillary::comm
