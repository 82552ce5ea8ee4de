#include "armillary/predict/sim/device_dtype.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "armillary/core/error.h"

namespace armillary::sim {
namespace {

/// Curves of a narrow dtype, if there are any, else all, as curves of another that is `ratio` times
/// as fast.
std::vector<KernelCurve> scaled_curves(const std::vector<KernelCurve>& curves, plan::Dtype dtype,
                                       double ratio) {
  const auto is_narrow = [](const KernelCurve& curve) { return plan::bytes_of(curve.dtype) == 2; };
  const bool has_narrow = std::ranges::any_of(curves, is_narrow);
  std::vector<KernelCurve> scaled;
  for (KernelCurve curve : curves) {
    if (has_narrow && !is_narrow(curve)) continue;
    curve.dtype = dtype;
    curve.flops_per_s *= ratio;
    for (RatePoint& point : curve.points) point.rate *= ratio;
    scaled.push_back(std::move(curve));
  }
  return scaled;
}

}  // namespace

DeviceInDtype device_in(DeviceSpec device, plan::Dtype dtype) {
  if (plan::bytes_of(dtype) == 2) return {.device = std::move(device), .assumed = {}};
  const auto is_of_dtype = [&](const KernelCurve& curve) { return curve.dtype == dtype; };
  const bool is_fp32 = dtype == plan::Dtype::F32;
  const std::string key = fmt::format("device.matmul_{}_TFLOPs", to_string(dtype));
  const double usual = device.matmul_flops_per_s;
  const double own = is_fp32 ? device.matmul_fp32_flops_per_s : device.matmul_fp64_flops_per_s;
  std::string assumed;
  if (own > 0) {
    device.matmul_flops_per_s = own;
  } else if (!std::ranges::all_of(device.kernels, is_of_dtype)) {
    if (!is_fp32) {
      fail<InvalidArgument>(
          "cluster: device {} has no rate of products in {}, which follows from no other; {} in a "
          "file of the cluster is required",
          device.name, to_string(dtype), key);
    }
    device.matmul_flops_per_s *= kFp32Share;
    assumed = fmt::format("{} products at {} of matmul_TFLOPs, as TF32 (no {})", to_string(dtype),
                          kFp32Share, key);
  }
  // Without any rate of products, whoever asks for attention is told of the missing curve.
  if (usual > 0 && std::ranges::none_of(device.kernels, is_of_dtype)) {
    const double ratio = device.matmul_flops_per_s / usual;
    device.kernels = scaled_curves(device.kernels, dtype, ratio);
    assumed += fmt::format("{}attention at {:.3g} of the device's (no [[device.kernel]] of {})",
                           assumed.empty() ? "" : ", ", ratio, to_string(dtype));
  }
  return {.device = std::move(device), .assumed = std::move(assumed)};
}

}  // namespace armillary::sim
