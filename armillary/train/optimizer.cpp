// optimizer.cpp: the norm over all pieces in one fixed order, and ATen's fused AdamW, which updates
// values and state in one pass.
#include "armillary/train/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace armillary::train {
namespace {

/// Sum of squares in fp64 of numbers that come in parts. 32 partial sums are independent of each
/// other, so the additions overlap; the n-th number goes to sum n % 32 wherever the parts end, so
/// equal gradients give equal bits. Less than 32 numbers at the end go to the first sum.
class SquareSum {
 public:
  void add(std::span<const float> x) {
    // First the row of 32 that the part before has begun.
    while (!x.empty() && begun_ > 0) {
      row_[begun_++] = x.front();
      x = x.subspan(1);
      if (begun_ == kSums) add_row(row_.data());
    }
    for (; x.size() >= kSums; x = x.subspan(kSums)) add_row(x.data());
    for (const float value : x) row_[begun_++] = value;
  }

  double total() const {
    std::array<double, kSums> sums = sums_;
    for (std::size_t i = 0; i < begun_; ++i) sums[0] += static_cast<double>(row_[i]) * row_[i];
    return std::accumulate(sums.begin(), sums.end(), 0.0);
  }

 private:
  static constexpr std::size_t kSums = 32;

  void add_row(const float* row) {
    for (std::size_t j = 0; j < kSums; ++j) {
      const double value = row[j];
      sums_[j] += value * value;
    }
    begun_ = 0;
  }

  std::array<double, kSums> sums_{};
  std::array<float, kSums> row_{};
  std::size_t begun_ = 0;  ///< Numbers in the row.
};

std::vector<at::Tensor> each(const std::vector<Piece>& pieces, at::Tensor Piece::*member) {
  std::vector<at::Tensor> tensors;
  for (const Piece& piece : pieces) tensors.push_back(piece.*member);
  return tensors;
}

}  // namespace

Section section_of(OptimizerOptions& o) {
  return {"optimizer",
          {
              {"name", &o.name, "AdamW", Names{"AdamW"}},
              {"lr", &o.lr, "peak learning rate", above_zero()},
              {"beta1", &o.beta1, "decay of the mean", below_one()},
              {"beta2", &o.beta2, "decay of the mean square", below_one()},
              {"eps", &o.eps, "added to the root mean square", above_zero()},
              {"weight_decay", &o.weight_decay, "decoupled, times lr", at_least(0)},
          }};
}

Optimizer::Optimizer(std::vector<Piece> pieces, const OptimizerOptions& options)
    : pieces_(std::move(pieces)), options_(options) {}

// As torch's clip_grad_norm_: gradients that are small enough stay as they are.
double Optimizer::clip(double max_norm) {
  SquareSum squares;
  for (const Piece& piece : pieces_) {
    squares.add(
        {piece.gradient.const_data_ptr<float>(), static_cast<std::size_t>(piece.gradient.numel())});
  }
  const double norm = std::sqrt(squares.total());
  const double scale = max_norm / (norm + 1e-6);  // torch's epsilon
  if (scale < 1) {
    for (Piece& piece : pieces_) piece.gradient.mul_(scale);
  }
  return norm;
}

void Optimizer::step(double lr) {
  const at::NoGradGuard no_grad;
  // ATen takes one step count per parameter; all of them are the same tensor. The fused kernel
  // updates parameters, means and squares in place, in one pass.
  const at::Tensor step = at::full({}, static_cast<double>(++steps_), at::kFloat);
  at::_fused_adamw_(each(pieces_, &Piece::value), each(pieces_, &Piece::gradient),
                    each(pieces_, &Piece::mean), each(pieces_, &Piece::square),
                    /*max_exp_avg_sqs=*/{}, std::vector<at::Tensor>(pieces_.size(), step), lr,
                    options_.beta1, options_.beta2, options_.weight_decay, options_.eps,
                    /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace armillary::train
