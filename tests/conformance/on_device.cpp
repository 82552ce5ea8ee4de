// on_device.cpp: the conformance tests of messages and collectives whose memory lies on a device.
// Engines without one leave them out, and say so.
#include "tests/conformance/on_device.h"

#include <thread>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"

namespace armillary::comm {

Strided DeviceCopies::allocate(const Strided& part) {
  Strided result = part;
  result.device = device_;
  const bool empty = part.rows == 0 || part.row_bytes == 0;
  const std::int64_t extent = empty ? 0 : (part.rows - 1) * part.stride_bytes + part.row_bytes;
  if (extent > 0) result.data = api_.allocate(extent, stream_);
  wait();
  return result;
}

void DeviceCopies::release(const Strided& part) {
  if (part.rows > 0 && part.row_bytes > 0) api_.release(part.data, stream_);
}

void DeviceCopies::copy(const Strided& from, const Strided& to) {
  if (from.rows == 0 || from.row_bytes == 0) return;
  api_.copy({to.data, to.stride_bytes, from.data, from.stride_bytes, from.row_bytes, from.rows},
            stream_);
  wait();
}

void DeviceCopies::wait() {
  const GpuEvent event = api_.record(stream_);
  while (!api_.is_done(event)) std::this_thread::yield();
  api_.drop_event(event);
}

namespace {

/// A message of device memory that stands for one of host memory.
class MirroredPending : public Pending {
 public:
  MirroredPending(DeviceCopies& copies, const Message& message)
      : Pending(message, total_bytes(message.parts)),
        copies_(copies),
        host_(message.parts.begin(), message.parts.end()) {
    for (const Strided& part : host_) {
      device_.push_back(copies_.allocate(part));
      if (direction() == Direction::Send) copies_.copy(part, device_.back());
    }
  }
  ~MirroredPending() override {
    inner.reset();  // Withdraws it, while its memory is there.
    for (const Strided& part : device_) copies_.release(part);
  }

  std::span<const Strided> device_parts() const { return device_; }
  /// Copies a receive that is done into host memory.
  void finish() const {
    if (direction() == Direction::Send || std::exchange(finished_, true)) return;
    for (std::size_t i = 0; i < host_.size(); ++i) copies_.copy(device_[i], host_[i]);
  }

  Request inner;

 private:
  DeviceCopies& copies_;
  std::vector<Strided> host_;
  std::vector<Strided> device_;
  mutable bool finished_ = false;
};

/// An array on the device that stands for one in host memory.
class Mirror {
 public:
  Mirror(DeviceCopies& copies, const Array& array)
      : copies_(copies),
        host_{array.data, 1, array.bytes(), array.bytes()},
        device_(copies.allocate(host_)),
        array_{device_.data, array.count, array.dtype, copies.device()} {
    copies_.copy(host_, device_);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  ~Mirror() { copies_.release(device_); }

  const Array& array() const { return array_; }
  void copy_back() { copies_.copy(device_, host_); }

 private:
  DeviceCopies& copies_;
  Strided host_;
  Strided device_;
  Array array_;
};

class MirroredCollectives : public Collectives {
 public:
  MirroredCollectives(Communicator& comm, Communicator& inner, DeviceCopies& copies)
      : Collectives(comm), inner_(inner.collectives()), copies_(copies) {}

  void all_reduce(const Array& values, Reduction reduction) override {
    Mirror mirror(copies_, values);
    inner_.all_reduce(mirror.array(), reduction);
    mirror.copy_back();
  }
  void reduce_scatter(const Array& all, const Array& mine, Reduction reduction) override {
    Mirror from(copies_, all);
    Mirror to(copies_, mine);
    inner_.reduce_scatter(from.array(), to.array(), reduction);
    to.copy_back();
  }
  void all_gather(const Array& mine, const Array& all) override {
    Mirror from(copies_, mine);
    Mirror to(copies_, all);
    inner_.all_gather(from.array(), to.array());
    to.copy_back();
  }
  void all_to_all(const Array& outgoing, const Array& incoming) override {
    Mirror from(copies_, outgoing);
    Mirror to(copies_, incoming);
    inner_.all_to_all(from.array(), to.array());
    to.copy_back();
  }
  void broadcast(const Array& values, int root) override {
    Mirror mirror(copies_, values);
    inner_.broadcast(mirror.array(), root);
    mirror.copy_back();
  }
  void barrier() override { inner_.barrier(); }

 private:
  Collectives& inner_;
  DeviceCopies& copies_;
};

class OnDevice : public Communicator {
 public:
  OnDevice(Communicator& inner, std::unique_ptr<Communicator> owned, DeviceCopies& copies,
           Communicator* root)
      : Communicator(inner.rank(), inner.world(), inner.timeout_s(), inner.lanes(), root),
        owned_(std::move(owned)),
        inner_(inner),
        copies_(copies) {}

  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = inner_.split(color, key);
    if (!part) return nullptr;
    Communicator& view = *part;
    return std::make_unique<OnDevice>(view, std::move(part), copies_, &root());
  }
  int root_rank(int rank) const override { return inner_.root_rank(rank); }
  std::unique_ptr<PeerWait> begin_peer_wait(PeerWaitOptions wait) override {
    return inner_.begin_peer_wait(std::move(wait));
  }
  void throw_if_failed() override { inner_.throw_if_failed(); }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }

 private:
  void do_start(std::span<const Message> batch, std::span<Request> requests) override {
    std::vector<std::shared_ptr<MirroredPending>> mirrored;
    std::vector<Message> messages(batch.begin(), batch.end());
    std::vector<Request> started(batch.size());
    for (Message& message : messages) {
      mirrored.push_back(std::make_shared<MirroredPending>(copies_, message));
      message.parts = mirrored.back()->device_parts();
    }
    inner_.start(messages, started);
    for (std::size_t i = 0; i < started.size(); ++i) {
      mirrored[i]->inner = std::move(started[i]);
      requests[i] = std::move(mirrored[i]);
    }
  }
  bool do_is_complete(const Pending& request) override {
    const auto& own = static_cast<const MirroredPending&>(request);
    const bool is_complete = inner_.is_complete(own.inner);
    if (is_complete) own.finish();
    return is_complete;
  }
  std::size_t do_wait_any(std::span<const Request> requests, double timeout_s) override {
    std::vector<Request> inner(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i]) inner[i] = static_cast<const MirroredPending&>(*requests[i]).inner;
    }
    const std::size_t index = inner_.wait_any(inner, timeout_s);
    static_cast<const MirroredPending&>(*requests[index]).finish();
    return index;
  }
  std::unique_ptr<Collectives> make_collectives() override {
    return std::make_unique<MirroredCollectives>(*this, inner_, copies_);
  }

  const std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  DeviceCopies& copies_;
};

}  // namespace

std::unique_ptr<Communicator> on_device(Communicator& inner, DeviceCopies& copies) {
  return std::make_unique<OnDevice>(inner, nullptr, copies, nullptr);
}

}  // namespace armillary::comm
