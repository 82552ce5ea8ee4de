// device_dtype_test.cpp: rates of a dtype are those of the device, or follow by the stated ratio.
#include "armillary/predict/sim/device_dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "armillary/core/error.h"

namespace armillary::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(DeviceDtype, Bf16IsThatOfTheDevice) {
  const DeviceSpec device = load_cluster("c6").device;
  for (const plan::Dtype dtype : {plan::Dtype::Bf16, plan::Dtype::F16}) {
    EXPECT_EQ(device_in(device, dtype).device, device);
    EXPECT_EQ(device_in(device, dtype).assumed, "");
  }
}

TEST(DeviceDtype, Fp32WithoutARateIsHalfAsFast) {
  const DeviceSpec device = load_cluster("c6").device;
  const DeviceInDtype fp32 = device_in(device, plan::Dtype::F32);
  EXPECT_DOUBLE_EQ(fp32.device.matmul_flops_per_s, device.matmul_flops_per_s / 2);
  ASSERT_EQ(fp32.device.kernels.size(), device.kernels.size());
  for (std::size_t k = 0; k < device.kernels.size(); ++k) {
    EXPECT_EQ(fp32.device.kernels[k].dtype, plan::Dtype::F32);
    EXPECT_DOUBLE_EQ(fp32.device.kernels[k].rate(500), device.kernels[k].rate(500) / 2);
  }
  EXPECT_EQ(fp32.assumed,
            "fp32 products at 0.5 of matmul_TFLOPs, as TF32 (no device.matmul_fp32_TFLOPs), "
            "attention at 0.5 of the device's (no [[device.kernel]] of fp32)");
}

TEST(DeviceDtype, AKnownRateIsTaken) {
  DeviceSpec device = load_cluster("c6").device;
  device.matmul_fp32_flops_per_s = device.matmul_flops_per_s / 4;
  const DeviceInDtype scaled = device_in(device, plan::Dtype::F32);
  EXPECT_DOUBLE_EQ(scaled.device.matmul_flops_per_s, device.matmul_fp32_flops_per_s);
  EXPECT_DOUBLE_EQ(scaled.device.kernels[0].rate(500), device.kernels[0].rate(500) / 4);
  EXPECT_EQ(scaled.assumed, "attention at 0.25 of the device's (no [[device.kernel]] of fp32)");
  // With a curve of its own nothing is assumed, and points are scaled as formulas are.
  device.kernels.push_back({.head_dim = 64, .dtype = plan::Dtype::F32, .points = {{1000, 7e12}}});
  const DeviceInDtype known = device_in(device, plan::Dtype::F32);
  EXPECT_EQ(known.device.kernels, device.kernels);
  EXPECT_EQ(known.assumed, "");
  device.kernels = {{.dtype = plan::Dtype::Bf16, .points = {{1000, 8e12}}}};
  EXPECT_DOUBLE_EQ(device_in(device, plan::Dtype::F32).device.kernels[0].rate(1000), 2e12);
}

TEST(DeviceDtype, ADeviceOfOneDtypeHasItsRates) {
  DeviceSpec device = load_cluster("c6").device;
  for (KernelCurve& curve : device.kernels) curve.dtype = plan::Dtype::F32;
  EXPECT_EQ(device_in(device, plan::Dtype::F32).device, device);
  EXPECT_EQ(device_in(device, plan::Dtype::F32).assumed, "");
}

TEST(DeviceDtype, Fp64NeedsItsRate) {
  DeviceSpec device = load_cluster("c6").device;
  EXPECT_THAT(
      [&] { device_in(device, plan::Dtype::F64); },
      ThrowsMessage<InvalidArgument>(HasSubstr(
          "cluster: device A100-SXM-80GB has no rate of products in fp64, which follows from no "
          "other; device.matmul_fp64_TFLOPs in a file of the cluster is required")));
  device.matmul_fp64_flops_per_s = 18e12;
  EXPECT_DOUBLE_EQ(device_in(device, plan::Dtype::F64).device.matmul_flops_per_s, 18e12);
  EXPECT_EQ(device_in(device, plan::Dtype::F64).device.kernels[0].dtype, plan::Dtype::F64);
}

}  // namespace
}  // namespace armillary::sim
