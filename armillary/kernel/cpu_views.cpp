#include "armillary/kernel/cpu_views.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

namespace armillary::kernel {
namespace {

/// Team::run by ATen: one iteration of a parallel loop per thread of the team.
void run_on_intra_op_threads(int threads, void (*work)(void*), void* context) {
  at::parallel_for(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) work(context);
  });
}

}  // namespace

cpu::Team intra_op_team(double flops) {
  // Waking a thread takes about as long as a million flops, so a thread gets at least two million.
  constexpr double kFlopsAThread = 1 << 21;
  if (at::in_parallel_region() || flops < 2 * kFlopsAThread) return {.threads = 1};
  const int busy = static_cast<int>(std::min<double>(flops / kFlopsAThread, at::get_num_threads()));
  return {.threads = busy, .run = run_on_intra_op_threads};
}

bool has_rows(const at::Tensor& x) {
  return x.size(-1) <= 1 || x.stride(-1) == 1;
}

cpu::Element element_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return cpu::Element::BFloat16;
  return dtype == at::kHalf ? cpu::Element::Float16 : cpu::Element::Float32;
}

// Requires a dtype that kernels take, so every dtype but fp64 is one of cpu::Element.
bool suits_row_ops(const at::Tensor& x) {
  return x.is_cpu() && x.dim() == 4 && x.scalar_type() != at::kDouble && has_rows(x);
}

cpu::RowShape shape_of(const at::Tensor& x_BLHE) {
  return {.batch = x_BLHE.size(0),
          .rows = x_BLHE.size(1),
          .heads = x_BLHE.size(2),
          .width = static_cast<int>(x_BLHE.size(3))};
}

cpu::Input input_of(const at::Tensor& x_BLHE) {
  return {.data = x_BLHE.const_data_ptr(),
          .batch = x_BLHE.stride(0),
          .row = x_BLHE.stride(1),
          .head = x_BLHE.stride(2)};
}

cpu::RoundedOutput result_of(const at::Tensor& x_BLHE) {
  return {.data = x_BLHE.mutable_data_ptr(),
          .element = element_of(x_BLHE.scalar_type()),
          .batch = x_BLHE.stride(0),
          .row = x_BLHE.stride(1),
          .head = x_BLHE.stride(2)};
}

cpu::Output output_of(const at::Tensor& x) {
  return {.data = x.mutable_data_ptr<float>(),
          .batch = x.stride(0),
          .row = x.stride(1),
          .head = x.stride(2)};
}

}  // namespace armillary::kernel
