// Pieces of messages: sends, arrivals and receives, and what has ended. All of it runs in
// MpiGroup::progress() or start(), with the lock held.
#include <algorithm>
#include <array>
#include <cstring>

#include "armillary/comm/label.h"
#include "armillary/comm/mpi/group.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"

namespace armillary::comm {
namespace {

/// The memory of a piece as MPI is told of it: the bytes, behind a label if it has one. MPI keeps
/// the datatype until the piece has ended.
class PieceMemory {
 public:
  PieceMemory(const Label* label, std::span<std::byte> piece)
      : memory_(piece.data()), count_(static_cast<int>(piece.size())) {
    if (label == nullptr) return;
    if (piece.empty()) {
      memory_ = const_cast<Label*>(label);  // A send only reads it.
      count_ = sizeof(Label);
      return;
    }
    const std::array<int, 2> sizes{sizeof(Label), count_};
    std::array<MPI_Aint, 2> places{};
    check_mpi(MPI_Get_address(label, places.data()), "MPI_Get_address");
    check_mpi(MPI_Get_address(piece.data(), &places[1]), "MPI_Get_address");
    check_mpi(MPI_Type_create_hindexed(2, sizes.data(), places.data(), MPI_BYTE, &own_),
              "MPI_Type_create_hindexed");
    check_mpi(MPI_Type_commit(&own_), "MPI_Type_commit");
    memory_ = MPI_BOTTOM;
    count_ = 1;
  }
  PieceMemory(const PieceMemory&) = delete;
  PieceMemory& operator=(const PieceMemory&) = delete;
  ~PieceMemory() {
    if (own_ != MPI_DATATYPE_NULL) MPI_Type_free(&own_);
  }
  void* memory() const { return memory_; }
  int count() const { return count_; }
  MPI_Datatype type() const { return own_ == MPI_DATATYPE_NULL ? MPI_BYTE : own_; }

 private:
  void* memory_;
  int count_;
  MPI_Datatype own_ = MPI_DATATYPE_NULL;
};

}  // namespace

// All pieces are given to MPI at once, so the next message of the lane cannot overtake one.
void MpiGroup::send(MpiPending& message) {
  message.set_under_way();
  const int group = message.lane() / options_.lanes;
  MPI_Comm const lane = lanes_[message.lane() % options_.lanes];
  while (message.pieces_started() < message.pieces()) {
    const int tag = group * kTags + message.tag();
    const std::span<std::byte> piece = message.next_piece();
    MPI_Request request = MPI_REQUEST_NULL;
    const PieceMemory bytes(message.pieces_started() == 0 ? message.label() : nullptr, piece);
    check_mpi(
        MPI_Isend(bytes.memory(), bytes.count(), bytes.type(), message.peer(), tag, lane, &request),
        "MPI_Isend");
    ++pieces_sent_[message.peer()];
    message.piece_started();
    add_request(request, {.message = &message, .thrown_away = {}});
  }
}

// Takes every message from MPI in order, also those without a receive yet: messages of another
// group made by split() may lie behind them on the same MPI communicator.
void MpiGroup::take_arrivals(int lane) {
  while (true) {
    int flag = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, lanes_[lane], &flag, &message, &status),
              "MPI_Improbe");
    if (!flag) return;
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    ++pieces_received_[status.MPI_SOURCE];
    const int group = status.MPI_TAG / kTags;
    const Source source{status.MPI_SOURCE, group * options_.lanes + lane};
    MpiQueue& queue = queues_[source];
    queue.arrivals.push_back({message, bytes, status.MPI_TAG % kTags});
    match(source, queue);
  }
}

void MpiGroup::match(const Source& source, MpiQueue& queue) {
  const bool drop = drains();
  if (queue.refused && !drop) return;
  while (!queue.arrivals.empty()) {
    const bool has_receive = !queue.receives.empty() && queue.receives.front() != nullptr;
    if (has_receive && !drop) {
      receive(source, queue);
      if (abort_channel_->raised() || queue.refused) return;  // The sizes differ.
    } else if (drop || !queue.receives.empty() || abort_channel_->is_leaving(source.first)) {
      throw_away(queue.arrivals.front());
      queue.arrivals.pop_front();
    } else {
      return;  // No receive was started yet.
    }
  }
}

void MpiGroup::receive(const Source& source, MpiQueue& queue) {
  // The first piece, or that behind the label, tells the bytes of the message, before any memory is
  // touched.
  MpiPending& message = *queue.receives.front();
  ArrivedPiece arrival = queue.arrivals.front();
  queue.arrivals.pop_front();
  const bool is_first = message.pieces_started() == 0;
  const int tag = message.tag();
  const std::span<std::byte> piece = message.next_piece();
  const std::int64_t required = std::ssize(piece) + (is_first ? message.label_bytes() : 0);
  if (arrival.bytes != required || arrival.tag != tag) {
    queue.refused = true;
    return refuse(arrival, message,
                  arrival.bytes + MpiPending::bytes_after(arrival.tag, options_.piece_bytes));
  }
  if (is_first && message.label_is_apart()) return receive_label(source, queue, arrival);
  // The piece goes to its place; after the last one the next receive is due.
  MPI_Request request = MPI_REQUEST_NULL;
  const PieceMemory bytes(is_first && message.label() ? &message.sent_label() : nullptr, piece);
  check_mpi(MPI_Imrecv(bytes.memory(), bytes.count(), bytes.type(), &arrival.message, &request),
            "MPI_Imrecv");
  message.piece_started();
  add_request(request, {.message = &message, .thrown_away = {}});
  if (message.pieces_started() < message.pieces()) return;
  queue.receives.pop_front();
  --receives_waiting_[source.second % options_.lanes];
}

// It is short, so that its bytes have come with the arrival: MPI does not wait.
void MpiGroup::receive_label(const Source& source, MpiQueue& queue, ArrivedPiece& arrival) {
  MpiPending& message = *queue.receives.front();
  check_mpi(MPI_Mrecv(&message.sent_label(), sizeof(Label), MPI_BYTE, &arrival.message,
                      MPI_STATUS_IGNORE),
            "MPI_Mrecv");
  message.piece_started();
  message.piece_ended();
  if (message.sent_label() == *message.label()) return;
  queue.refused = true;
  abort_channel_->raise(
      rank_, difference_text(source.first, &message.sent_label(), rank_, message.label()));
}

// The sender's memory is free only when the bytes are here, so unwanted ones are received too.
void MpiGroup::throw_away(const ArrivedPiece& arrival,
                          std::function<void(const std::byte* memory)> refuse) {
  MPI_Message message = arrival.message;
  MPI_Request request = MPI_REQUEST_NULL;
  auto memory = std::make_unique_for_overwrite<std::byte[]>(arrival.bytes);
  check_mpi(MPI_Imrecv(memory.get(), arrival.bytes, MPI_BYTE, &message, &request), "MPI_Imrecv");
  add_request(request,
              {.message = nullptr, .thrown_away = std::move(memory), .refuse = std::move(refuse)});
}

void MpiGroup::refuse(const ArrivedPiece& arrival, const MpiPending& receive,
                      std::int64_t sent_bytes) {
  const int sender = receive.peer();
  const std::string sizes = fmt::format(
      "rank {} sends {} to rank {} on lane {}, which receives {}; equal sizes are required", sender,
      count_of(sent_bytes, "byte"), rank_, receive.lane(), count_of(receive.bytes(), "byte"));
  if (receive.label() == nullptr) return abort_channel_->raise(rank_, sizes);
  throw_away(arrival, [this, sender, sizes, own = *receive.label(),
                       labelled = receive.pieces_started() == 0 &&
                                  arrival.bytes >= receive.label_bytes()](const std::byte* memory) {
    Label label;
    if (labelled) std::memcpy(&label, memory, sizeof label);
    abort_channel_->raise(
        rank_, labelled && label != own ? difference_text(sender, &label, rank_, &own) : sizes);
  });
}

void MpiGroup::test_requests() {
  if (requests_.empty()) return;
  int count = 0;
  completed_.resize(requests_.size());
  check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                         completed_.data(), MPI_STATUSES_IGNORE),
            "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return;
  for (int i = 0; i < count; ++i) {
    const Owner& owner = owners_[completed_[i]];
    if (owner.refuse) owner.refuse(owner.thrown_away.get());
    MpiPending* const message = owner.message;
    // A message that ends after the failure is not done: calls for it throw.
    if (!message || !message->piece_ended()) continue;
    if (message->direction() == Direction::Receive && message->label() &&
        message->sent_label() != *message->label()) {
      abort_channel_->raise(
          rank_, difference_text(message->peer(), &message->sent_label(), rank_, message->label()));
    }
    if (!abort_channel_->raised()) {
      message->set_done(++messages_done_);
      heartbeat_.message_done();
    }
  }
  // The last entries fill the gaps, the last gap first.
  std::sort(completed_.begin(), completed_.begin() + count, std::greater<>());
  for (int i = 0; i < count; ++i) {
    std::swap(requests_[completed_[i]], requests_.back());
    std::swap(owners_[completed_[i]], owners_.back());
    requests_.pop_back();
    owners_.pop_back();
  }
}

}  // namespace armillary::comm
