// optimizer.cpp: the norm over the pieces of all owners, and ATen's fused AdamW and Adam, which
// update values and state in one pass.
#include "armillary/train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"

namespace armillary::train {
namespace {

/// Adds the squares of a gradient. The sum is exact, so threads may add their parts in any order.
template <class Number, class Sum>
void add_gradient_squares(Sum& squares, const at::Tensor& gradient) {
  constexpr std::int64_t kGrain = 1 << 16;  // numbers that are worth a thread
  const std::span all(gradient.const_data_ptr<Number>(),
                      static_cast<std::size_t>(gradient.numel()));
  std::mutex mutex;
  at::parallel_for(0, gradient.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    Sum part;
    part.add(all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    const std::lock_guard lock(mutex);
    squares.add(part);
  });
}

/// The sum of those of all ranks, the same bits on each.
template <class Sum>
Sum sum_over(comm::Communicator& owners, const Sum& mine) {
  const std::size_t size = mine.bytes().size();
  std::vector<std::byte> all(size * static_cast<std::size_t>(owners.world()));
  comm::all_gather(owners, mine.bytes(), std::span(all));
  Sum sum;
  for (std::size_t begin = 0; begin < all.size(); begin += size) {
    Sum one;
    std::ranges::copy(std::span(all).subspan(begin, size), one.bytes().begin());
    sum.add(one);
  }
  return sum;
}

/// Tensors of pieces for ATen's fused kernels, which round what their vectors leave at the end of a
/// tensor in another way: an element would have other bits where another rank cuts its piece. So
/// ends are copied to whole vectors.
class FusedList {
 public:
  FusedList(const std::vector<Piece>& pieces, at::Tensor Piece::*member) {
    for (const Piece& piece : pieces) add((piece.*member).view({-1}));
  }

  at::TensorList tensors() const { return tensors_; }
  std::size_t size() const { return tensors_.size(); }

  /// Copies the ends back.
  void finish() const {
    for (const auto& [end, vector] : ends_) end.copy_(vector.narrow(0, 0, end.numel()));
  }

 private:
  static constexpr std::int64_t kVector = 16;  // elements; a multiple of each vector's

  void add(const at::Tensor& whole) {
    const std::int64_t most = whole.numel() / kVector * kVector;
    if (most > 0) tensors_.push_back(whole.narrow(0, 0, most));
    if (most == whole.numel()) return;
    const at::Tensor end = whole.narrow(0, most, whole.numel() - most);
    const at::Tensor vector = at::zeros({kVector}, whole.options());
    vector.narrow(0, 0, end.numel()).copy_(end);
    tensors_.push_back(vector);
    ends_.emplace_back(end, vector);
  }

  std::vector<at::Tensor> tensors_;
  std::vector<std::pair<at::Tensor, at::Tensor>> ends_;
};

}  // namespace

Section section_of(OptimizerOptions& o) {
  return {"optimizer",
          {
              {"name", &o.name, "Adam adds weight decay to gradients", Names{"AdamW", "Adam"}},
              {"lr", &o.lr, "peak learning rate", above_zero()},
              {"beta1", &o.beta1, "decay of the mean", below_one()},
              {"beta2", &o.beta2, "decay of the mean square", below_one()},
              {"eps", &o.eps, "added to the root mean square", above_zero()},
              {"weight_decay", &o.weight_decay, "of AdamW decoupled, times lr", at_least(0)},
              {"state_device", &o.state_device,
               "where moments, and masters that are not the weights, rest; host: but for updates",
               Names{"device", "host"}},
          }};
}

Optimizer::Optimizer(std::vector<Piece> pieces, const OptimizerOptions& options,
                     at::ScalarType dtype)
    : options_(options) {
  for (Piece& piece : pieces) pieces_of(piece.unit).push_back(std::move(piece));
  if (dtype == at::kDouble) squares_ = SquareSumFp64();
}

std::vector<Piece>& Optimizer::pieces_of(int unit) {
  const auto place = static_cast<std::size_t>(unit);
  if (place >= pieces_.size()) pieces_.resize(place + 1);  // no row of it is this rank's
  return pieces_[place];
}

void Optimizer::add_squares(int unit) {
  for (const Piece& piece : pieces_of(unit)) {
    if (piece.is_copy || piece.sign_rate > 0) continue;
    if (auto* const squares = std::get_if<SquareSumFp64>(&squares_)) {
      add_gradient_squares<double>(*squares, piece.gradient);
    } else {
      add_gradient_squares<float>(std::get<SquareSum>(squares_), piece.gradient);
    }
  }
}

void Optimizer::sum_squares(comm::Communicator& owners) {
  std::visit([&](auto& squares) { squares = sum_over(owners, squares); }, squares_);
}

// As torch's clip_grad_norm_: gradients that are small enough stay as they are.
double Optimizer::clip(double max_norm) {
  ++steps_;
  const double norm = std::sqrt(
      std::visit([](auto& squares) { return std::exchange(squares, {}).total(); }, squares_));
  scale_ = max_norm / (norm + 1e-6);  // torch's epsilon
  return norm;
}

void Optimizer::update(const std::vector<Piece>& of_unit, double lr) {
  const at::NoGradGuard no_grad;
  std::vector<Piece> pieces;
  for (const Piece& piece : of_unit) {
    if (piece.sign_rate > 0) {
      piece.value.sub_(piece.gradient.sign(), piece.sign_rate);
    } else {
      pieces.push_back(piece);
    }
  }
  if (pieces.empty()) return;  // fewer rows than ranks
  if (scale_ < 1) {
    for (const Piece& piece : pieces) piece.gradient.mul_(scale_);
  }
  // ATen takes one step count per parameter; all of them are the same tensor. The fused kernel
  // updates parameters, means and squares in place, in one pass.
  const at::Tensor step = at::full({}, static_cast<double>(steps_), at::kFloat);
  using Fused = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                     at::TensorList, double, double, double, double, double, bool, bool,
                     const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
  Fused* const adam = &at::_fused_adam_;
  Fused* const adamw = &at::_fused_adamw_;
  const FusedList values(pieces, &Piece::value);
  const FusedList gradients(pieces, &Piece::gradient);
  const FusedList means(pieces, &Piece::mean);
  const FusedList squares(pieces, &Piece::square);
  (options_.name == "Adam" ? adam : adamw)(
      values.tensors(), gradients.tensors(), means.tensors(), squares.tensors(),
      /*max_exp_avg_sqs=*/{}, std::vector<at::Tensor>(values.size(), step), lr, options_.beta1,
      options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
      /*grad_scale=*/{}, /*found_inf=*/{});
  for (const FusedList* list : {&values, &means, &squares}) list->finish();
}

}  // namespace armillary::train
