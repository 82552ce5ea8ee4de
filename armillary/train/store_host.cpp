// store_host.cpp: the part of a store that moves the optimizer's state between host and device. A
// buffer knows whose state it has, so that no other unit is updated with it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <cstring>

#include "armillary/core/error.h"
#include "armillary/train/store.h"
#include "armillary/train/wait_time.h"

namespace armillary::train {
namespace {

/// Copies equal tensors as bytes, in the thread that calls.
void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  ARMILLARY_CHECK(to.nbytes() == from.nbytes());
  if (from.nbytes() > 0) std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
}

/// The place of a part of a unit's state in the values of a buffer.
at::Tensor staged(const at::Tensor& state, const at::Tensor& values) {
  return values.as_strided(state.sizes(), state.strides(), state.storage_offset());
}

}  // namespace

std::int64_t Store::state_bytes(const Unit& unit) const {
  return (masters_in_state(unit) ? 3 : 2) * own_count(unit) *
         static_cast<std::int64_t>(c10::elementSize(dtypes_.master));
}

Store::StateBuffer& Store::buffer_of(int unit, int buffer) {
  ARMILLARY_CHECK(lane_ != nullptr && buffer >= 0 && buffer < kBuffers);
  StateBuffer& of = buffers_[static_cast<std::size_t>(buffer)];
  if (of.unit == unit) return of;
  const auto state_of = [](int one) { return one < 0 ? "no unit" : fmt::format("unit {}", one); };
  fail<InternalError>("store: buffer {} with the state of {}; that of {} is required", buffer,
                      state_of(of.unit), state_of(unit));
}

void Store::start_fetch(int unit, int buffer) {
  const Unit& from = unit_at(unit);
  StateBuffer& to = buffer_of(-1, buffer);
  to.unit = unit;
  to.fetched = lane_->start([&from, &to] {
    to.values = at::empty_like(from.state);
    copy_bytes(to.values, from.state);
  });
  staged_bytes_ += state_bytes(from);
  count_bytes();
}

std::vector<Piece> Store::staged_pieces(int unit, int buffer) {
  const StateBuffer& from = buffer_of(unit, buffer);
  {
    const WaitTime wait(waited_s_);
    lane_->wait(from.fetched);
  }
  const bool has_masters = masters_in_state(unit_at(unit));
  std::vector<Piece> pieces;
  for (const Piece& piece : pieces_) {
    if (piece.unit != unit) continue;
    pieces.push_back(piece);
    pieces.back().mean = staged(piece.mean, from.values);
    pieces.back().square = staged(piece.square, from.values);
    if (has_masters) pieces.back().value = staged(piece.value, from.values);
  }
  return pieces;
}

void Store::place_staged(int unit, int buffer) {
  const StateBuffer& from = buffer_of(unit, buffer);
  Unit& of = unit_at(unit);
  if (!masters_in_state(of)) return;
  of.values.all().narrow(0, of.begin, own_count(of)).copy_(staged(of.own_values, from.values));
  of.is_placed = true;
}

void Store::start_move_back(int unit, int buffer) {
  const Unit& to = unit_at(unit);
  StateBuffer& from = buffer_of(unit, buffer);
  from.unit = -1;
  lane_->start([&from, &to] {
    copy_bytes(to.state, from.values);
    from.values.reset();
  });
  staged_bytes_ -= state_bytes(to);
}

void Store::finish_moves() {
  if (lane_ == nullptr) return;
  const WaitTime wait(waited_s_);
  lane_->finish();
}

std::int64_t Store::bytes_on_host() const {
  std::int64_t bytes = 0;
  for (const Unit& unit : units_) bytes += place_.on_host ? state_bytes(unit) : 0;
  return bytes;
}

}  // namespace armillary::train
