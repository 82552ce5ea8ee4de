// Notices of failure. They are found by MPI_Improbe, so no receive has to be cancelled when a group
// ends, and are small enough that a send does not wait for its receiver.
#include "armillary/comm/mpi/alarm.h"

#include <algorithm>

#include "armillary/comm/mpi/process.h"

namespace armillary::comm {

MpiAlarm::MpiAlarm(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_rank(comm, &self_);
  MPI_Comm_size(comm, &world_);
  leaving_.resize(world_);
  notices_received_.resize(world_);
}

void MpiAlarm::raise(int rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (raised()) return;
  failed_rank_ = rank;
  text_ = reason;
  own_ = rank == self_;
  raised_.store(true, std::memory_order_release);
}

CommError MpiAlarm::error() const {
  return CommError(fmt::format("rank {} failed: {}", failed_rank_, text_));
}

void MpiAlarm::poll() {
  if (waits_to_send()) {
    // A reason that is too long is cut: its end is a zero.
    sent_ = true;
    Notice notice{.rank = self_};
    std::copy_n(text_.begin(), std::min(text_.size(), notice.reason.size() - 1),
                notice.reason.begin());
    send_to_all(notice);
  }
  while (true) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, &message, &status),
              "MPI_Improbe");
    if (!found) return;
    Notice notice;
    check_mpi(MPI_Mrecv(&notice, sizeof(notice), MPI_BYTE, &message, MPI_STATUS_IGNORE),
              "MPI_Mrecv");
    ++notices_received_[status.MPI_SOURCE];
    // The rank that failed has told all others itself, so nothing is passed on.
    if (notice.kind == Kind::Failure) {
      raise(notice.rank, notice.reason.data());
    } else {
      leaving_[notice.rank] = true;
      any_leaving_ = true;
    }
  }
}

void MpiAlarm::announce_leaving() {
  if (announced_leaving_) return;
  announced_leaving_ = true;
  send_to_all({.kind = Kind::Leaving, .rank = self_});
}

void MpiAlarm::send_to_all(const Notice& notice) {
  // The list keeps the notice in its place, from which MPI sends it.
  outgoing_.push_back({.notice = notice, .requests = {}});
  Outgoing& out = outgoing_.back();
  ++notices_sent_;
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == self_) continue;
    out.requests.push_back(MPI_REQUEST_NULL);
    check_mpi(
        MPI_Isend(&out.notice, sizeof(Notice), MPI_BYTE, peer, 0, comm_, &out.requests.back()),
        "MPI_Isend");
  }
}

bool MpiAlarm::quiet() {
  std::erase_if(outgoing_, [](Outgoing& out) {
    int all = 0;
    check_mpi(MPI_Testall(static_cast<int>(out.requests.size()), out.requests.data(), &all,
                          MPI_STATUSES_IGNORE),
              "MPI_Testall");
    return all != 0;
  });
  return outgoing_.empty() && !waits_to_send();
}

}  // namespace armillary::comm
