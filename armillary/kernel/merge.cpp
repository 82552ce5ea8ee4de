#include "armillary/kernel/merge.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <limits>

#include "armillary/core/error.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/cpu_views.h"

namespace armillary::kernel {
namespace {

void expect_alike(const char* where, const char* what, const at::Tensor& given,
                  const at::Tensor& required) {
  if (given.sizes() != required.sizes()) {
    fail<InvalidArgument>("{}: {} has shape [{}]; [{}] is required", where, what,
                          fmt::join(given.sizes(), ", "), fmt::join(required.sizes(), ", "));
  }
}

/// a - b, so that exp(a - lse) of a merge is sigmoid(lead), which is exactly 1 and 0 where one side
/// is empty. Equal sides weigh the same; said so explicitly, because -inf - -inf is NaN.
at::Tensor lead(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).masked_fill_(a == b, 0);
}

/// Whether both are fp32 rows of the CPU: one pass over memory does it then, in place of three.
bool are_rows(const Partial& a, const Partial& b) {
  const at::Tensor& out = a.out_BLHE;
  return out.is_cpu() && out.scalar_type() == at::kFloat && out.dim() == 4 && has_rows(out) &&
         has_rows(b.out_BLHE) && a.lse_BLH.scalar_type() == at::kFloat &&
         b.lse_BLH.scalar_type() == at::kFloat && b.out_BLHE.is_cpu();
}

void merge_rows(const Partial& acc, const Partial& other) {
  const at::Tensor& out = acc.out_BLHE;
  cpu::merge(cpu::current_isa(), intra_op_team(4.0 * static_cast<double>(out.numel())),
             {.batch = out.size(0),
              .rows = out.size(1),
              .heads = out.size(2),
              .width = static_cast<int>(out.size(3)),
              .out = output_of(out),
              .lse = output_of(acc.lse_BLH),
              .other_out = output_of(other.out_BLHE),
              .other_lse = output_of(other.lse_BLH)});
}

}  // namespace

void clear(Partial& partial) {
  const c10::NoGradGuard no_grad;
  partial.out_BLHE.zero_();
  partial.lse_BLH.fill_(-std::numeric_limits<double>::infinity());
}

void merge(Partial& acc, const Partial& other) {
  const c10::NoGradGuard no_grad;
  expect_alike("merge", "other.out", other.out_BLHE, acc.out_BLHE);
  expect_alike("merge", "other.lse", other.lse_BLH, acc.lse_BLH);
  expect_alike("merge", "acc.lse", acc.lse_BLH, acc.out_BLHE.select(-1, 0));
  if (acc.out_BLHE.scalar_type() != other.out_BLHE.scalar_type()) {
    fail<InvalidArgument>("merge: partials of {} and {}; one dtype is required",
                          c10::toString(acc.out_BLHE.scalar_type()),
                          c10::toString(other.out_BLHE.scalar_type()));
  }
  if (are_rows(acc, other)) return merge_rows(acc, other);
  const at::Tensor& a = acc.lse_BLH;
  const at::Tensor& b = other.lse_BLH;
  const at::Tensor distance = lead(a, b).unsqueeze(-1);
  acc.out_BLHE.mul_(at::sigmoid(distance)).addcmul_(other.out_BLHE, at::sigmoid(-distance));
  acc.lse_BLH.copy_(at::logaddexp(a, b));
}

void finish(const Partial& partial, at::Tensor& out_BLHE, at::Tensor& lse_BLH,
            const at::Tensor& sinks_H) {
  const c10::NoGradGuard no_grad;
  expect_alike("finish", "out", out_BLHE, partial.out_BLHE);
  expect_alike("finish", "lse", lse_BLH, partial.lse_BLH);
  if (!sinks_H.defined()) {
    out_BLHE.copy_(partial.out_BLHE);
    lse_BLH.copy_(partial.lse_BLH);
    return;
  }
  const at::Tensor& lse = partial.lse_BLH;
  if (lse.dim() == 0 || sinks_H.sizes() != lse.sizes().slice(lse.dim() - 1) ||
      sinks_H.scalar_type() != lse.scalar_type()) {
    fail<InvalidArgument>("finish: sinks are {} [{}]; {}, one per head of lse [{}], is required",
                          c10::toString(sinks_H.scalar_type()), fmt::join(sinks_H.sizes(), ", "),
                          c10::toString(lse.scalar_type()), fmt::join(lse.sizes(), ", "));
  }
  out_BLHE.copy_(partial.out_BLHE * at::sigmoid(lead(lse, sinks_H)).unsqueeze(-1));
  lse_BLH.copy_(at::logaddexp(lse, sinks_H));
}

}  // namespace armillary::kernel
