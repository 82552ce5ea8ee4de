// Notices of failure. They are found by MPI_Improbe, so no receive has to be cancelled when a group
// ends, and are small enough that a send does not wait for its receiver.
#include "armillary/comm/mpi/abort_channel.h"

#include "armillary/comm/mpi/process.h"

namespace armillary::comm {

MpiAbortChannel::MpiAbortChannel(MPI_Comm comm, OwnHeartbeat& heartbeat)
    : comm_(comm), heartbeat_(heartbeat) {
  MPI_Comm_rank(comm, &self_);
  MPI_Comm_size(comm, &world_);
  leaving_.resize(world_);
  asked_.resize(world_);
  notices_sent_.resize(world_);
  notices_received_.resize(world_);
}

void MpiAbortChannel::record(int rank, const std::string& reason, bool tells) {
  const std::lock_guard lock(mutex_);
  // The first failure is the cause; those that follow are mostly its consequences.
  if (raised()) return;
  failed_rank_ = rank;
  text_ = reason;
  tells_ = tells;
  raised_.store(true, std::memory_order_release);
}

CommError MpiAbortChannel::error() const {
  return CommError(fmt::format("rank {} failed: {}", failed_rank_, text_));
}

void MpiAbortChannel::poll() {
  if (waits_to_send()) {
    sent_ = true;
    send_to_all(Notice::failure(failed_rank_, text_));
  }
  if (!outgoing_.empty()) forget_sent();
  while (true) {
    int flag = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &flag, &message, &status),
              "MPI_Improbe");
    if (!flag) return;
    Notice notice;
    check_mpi(MPI_Mrecv(&notice, sizeof(notice), MPI_BYTE, &message, MPI_STATUS_IGNORE),
              "MPI_Mrecv");
    ++notices_received_[status.MPI_SOURCE];
    take(notice, status.MPI_SOURCE);
  }
}

void MpiAbortChannel::take(const Notice& notice, int from) {
  switch (notice.kind) {
    case NoticeKind::Failure:
      // The rank that found it has told all others itself, so nothing is passed on.
      record(notice.rank, notice.text.data(), false);
      break;
    case NoticeKind::Leaving:
      leaving_[notice.rank] = true;
      any_leaving_ = true;
      break;
    case NoticeKind::Ask:
      if (asks_ && !raised()) {
        send({.kind = NoticeKind::Answer, .rank = self_, .text = to_bytes(heartbeat_.take())},
             from);
      }
      break;
    case NoticeKind::Answer:
      asked_[from] = false;
      answers_.emplace_back(from, heartbeat_of(notice.text));
      break;
    case NoticeKind::PassedOn:
    case NoticeKind::Left:
    case NoticeKind::Heard:
      break;  // Another engine's.
  }
}

void MpiAbortChannel::ask(int rank) {
  // One question at a time: a silent rank must not collect unread notices.
  if (!asks_ || raised() || asked_[rank]) return;
  asked_[rank] = true;
  send({.kind = NoticeKind::Ask, .rank = self_}, rank);
}

void MpiAbortChannel::announce_leaving() {
  if (announced_leaving_) return;
  announced_leaving_ = true;
  send_to_all({.kind = NoticeKind::Leaving, .rank = self_});
}

void MpiAbortChannel::send_to_all(const Notice& notice) {
  for (int peer = 0; peer < world_; ++peer) {
    if (peer != self_) send(notice, peer);
  }
}

void MpiAbortChannel::send(const Notice& notice, int peer) {
  // The list keeps the notice in its place, from which MPI sends it.
  MpiNotice& out = outgoing_.emplace_back(MpiNotice{.notice = notice, .request = MPI_REQUEST_NULL});
  ++notices_sent_[peer];
  check_mpi(MPI_Isend(&out.notice, sizeof(Notice), MPI_BYTE, peer, 0, comm_, &out.request),
            "MPI_Isend");
}

void MpiAbortChannel::forget_sent() {
  std::erase_if(outgoing_, [](MpiNotice& out) {
    int is_complete = 0;
    check_mpi(MPI_Test(&out.request, &is_complete, MPI_STATUS_IGNORE), "MPI_Test");
    return is_complete != 0;
  });
}

bool MpiAbortChannel::quiet() {
  forget_sent();
  return outgoing_.empty() && !waits_to_send();
}

}  // namespace armillary::comm
