// All sides run over the same two partial results, in place, with as many threads. Results are
// checked before the first turn only: adding makes values grow from turn to turn, which changes no
// speed.
#include "armillary/lab/bench/merge_rate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>

#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/core/threads.h"
#include "armillary/kernel/cpu/isa.h"
#include "armillary/kernel/merge.h"
#include "armillary/lab/bench/attention_case.h"
#include "armillary/lab/bench/cores.h"

namespace armillary::bench {

/// The two partial results, and plain loops over the memory of their outputs.
struct MergeRate::Buffers {
  kernel::Partial acc;
  kernel::Partial part;
  int threads = 1;

  std::int64_t bytes() const { return static_cast<std::int64_t>(acc.out_BLHE.nbytes()); }

  /// Calls work(to, from, count) on every thread for a piece of whole cache lines.
  template <class Work>
  void on_pieces(const Work& work) const {
    constexpr std::int64_t kLine = 16;  // floats of a cache line
    auto* to = acc.out_BLHE.data_ptr<float>();
    const auto* from = part.out_BLHE.const_data_ptr<float>();
    const std::int64_t lines = acc.out_BLHE.numel() / kLine;
    at::parallel_for(0, lines, (lines + threads - 1) / threads,
                     [&](std::int64_t begin, std::int64_t end) {
                       work(to + begin * kLine, from + begin * kLine, (end - begin) * kLine);
                     });
  }
};

namespace {

/// Adds in the widest vectors of the CPU, as the kernels beside it do: the compiler makes one
/// function for each instruction set, and the loader chooses.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
[[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
void add_rows(float* to, const float* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

/// Refuses a case before its tensors are made.
void check_merge(const MergeCase& spec) {
  if (spec.tokens < 1 || spec.heads < 1 || spec.head_dim < 1 || spec.threads < 1 ||
      spec.threads > kMaxThreads) {
    fail<InvalidArgument>(
        "bench: {}, {}, head dim {}, {}; at least 1 each, at most {} threads, "
        "are required",
        count_of(spec.tokens, "token"), count_of(spec.heads, "head"), spec.head_dim,
        count_of(spec.threads, "thread"), kMaxThreads);
  }
}

kernel::Partial random_partial(const MergeCase& spec, at::Generator& generator) {
  return {at::randn({1, spec.tokens, spec.heads, spec.head_dim}, generator),
          at::randn({1, spec.tokens, spec.heads}, generator)};
}

/// A copy in fp64 of the first tokens.
kernel::Partial first_in_fp64(const kernel::Partial& partial) {
  const auto first = [](const at::Tensor& x) {
    return x.narrow(1, 0, std::min<std::int64_t>(x.size(1), 1024)).to(at::kDouble);
  };
  return {first(partial.out_BLHE), first(partial.lse_BLH)};
}

}  // namespace

MergeRate::MergeRate(const MergeCase& spec)
    : buffers_(std::make_unique<Buffers>()), isa_(kernel::cpu::current_isa().name) {
  const c10::NoGradGuard no_grad;
  check_merge(spec);
  at::set_num_threads(spec.threads);
  at::Generator generator = at::detail::createCPUGenerator(7);
  *buffers_ = {random_partial(spec, generator), random_partial(spec, generator), spec.threads};
  // A merge against the same merge in fp64.
  kernel::Partial exact = first_in_fp64(buffers_->acc);
  kernel::merge(exact, first_in_fp64(buffers_->part));
  kernel::merge(buffers_->acc, buffers_->part);
  const kernel::Partial merged = first_in_fp64(buffers_->acc);
  max_error_ = error_of({merged.out_BLHE, merged.lse_BLH}, {exact.out_BLHE, exact.lse_BLH});
  require_right("merge", max_error_, plan::Dtype::F32);
  // An add against the sum in fp64.
  const at::Tensor sum = merged.out_BLHE + first_in_fp64(buffers_->part).out_BLHE;
  kernel::add(buffers_->acc.out_BLHE, buffers_->part.out_BLHE);
  const double of_add = error_of({first_in_fp64(buffers_->acc).out_BLHE}, {sum});
  require_right("add", of_add, plan::Dtype::F32);
  max_error_ = std::max(max_error_, of_add);
}

MergeRate::~MergeRate() = default;

std::int64_t MergeRate::tensor_bytes() const {
  return buffers_->bytes();
}

std::vector<Side> MergeRate::sides() {
  Buffers& buffers = *buffers_;
  // Rate of a work that moves the bytes of so many tensors.
  const auto rate = [&buffers](double tensors, const std::function<void()>& work) {
    return tensors * static_cast<double>(buffers.bytes()) / seconds_of(work) / 1e9;
  };
  const auto copy = [](float* to, const float* from, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  };
  std::vector<Side> sides;
  if (buffers.threads > 1) sides.push_back(cores_side());
  sides.push_back({"merge", [=, &buffers] {
                     return rate(3, [&] { kernel::merge(buffers.acc, buffers.part); });
                   }});
  sides.push_back(
      {"loop", [=, &buffers] { return rate(3, [&] { buffers.on_pieces(add_rows); }); }});
  sides.push_back({"add", [=, &buffers] {
                     const c10::NoGradGuard no_grad;
                     return rate(3,
                                 [&] { kernel::add(buffers.acc.out_BLHE, buffers.part.out_BLHE); });
                   }});
  sides.push_back({"memcpy", [=, &buffers] { return rate(2, [&] { buffers.on_pieces(copy); }); }});
  return sides;
}

}  // namespace armillary::bench
