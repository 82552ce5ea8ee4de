// device_dtype.h: a device as it computes in one dtype. Published rates are of bf16; those of
// others are known, or follow from them by a ratio that is stated.
#pragma once

#include <string>

#include "armillary/plan/program/dtype.h"
#include "armillary/predict/sim/cluster.h"

namespace armillary::sim {

/// A device whose matmul_flops_per_s is of the dtype, with curves of attention for it.
struct DeviceInDtype {
  DeviceSpec device;
  std::string assumed;  ///< The rates that follow from others, for people; empty: all are known.
};

/// fp32 products by matmul_TFLOPs, on devices without a rate of their own: tensor cores multiply
/// TF32 half as fast as bf16 (NVIDIA data sheets of A100, H100 and B200).
inline constexpr double kFp32Share = 0.5;

/// The device in a dtype. bf16 and fp16 take its rates as they are.
///
///   products   matmul_fp32_TFLOPs or matmul_fp64_TFLOPs; else matmul_TFLOPs of a device all of
///              whose curves are of the dtype; else, for fp32, kFp32Share of it
///   attention  curves of the dtype; else the others, faster or slower as products are
///
/// @throws InvalidArgument for fp64 on a device without its rate, with the key that is required.
DeviceInDtype device_in(DeviceSpec device, plan::Dtype dtype);

}  // namespace armillary::sim
