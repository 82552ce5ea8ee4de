#include "armillary/model/objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/user_text.h"

namespace armillary::model {
namespace {

constexpr int kDdpmSteps = 1000;

/// Share of the picture's variance at each step of ddpm.
const std::vector<double>& picture_variances() {
  static const std::vector<double> variances = [] {
    std::vector<double> all;
    double product = 1;
    for (int i = 0; i < kDdpmSteps; ++i) {
      product *= 1 - (1e-4 + (0.02 - 1e-4) * i / (kDdpmSteps - 1));
      all.push_back(product);
    }
    return all;
  }();
  return variances;
}

int ddpm_step(double time) {
  return std::clamp(static_cast<int>(kDdpmSteps * time), 0, kDdpmSteps - 1);
}

}  // namespace

const std::vector<std::string>& objective_names() {
  static const std::vector<std::string> names{"rectified_flow", "ddpm"};
  return names;
}

Objective parse_objective(const std::string& name) {
  const std::vector<std::string>& names = objective_names();
  const auto entry = std::ranges::find(names, name);
  if (entry == names.end()) {
    const std::string nearest = nearest_name(name, names);
    fail<InvalidArgument>("recipe: model.objective {} is not known; {} is required{}", quote(name),
                          list_names(names), nearest.empty() ? "" : "; nearest: " + nearest);
  }
  return static_cast<Objective>(entry - names.begin());
}

NoiseShares shares_at(Objective objective, double time) {
  if (objective == Objective::RectifiedFlow || time == 0) return {1 - time, time};
  const double variance = picture_variances()[static_cast<std::size_t>(ddpm_step(time))];
  return {std::sqrt(variance), std::sqrt(1 - variance)};
}

at::Tensor noisy_patches(Objective objective, const at::Tensor& patches_BLC,
                         const at::Tensor& noise_BLC, const at::Tensor& times_BL) {
  const at::Tensor times = times_BL.to(at::kDouble).contiguous();
  at::Tensor picture_BL = at::empty_like(times);
  at::Tensor noise_BL = at::empty_like(times);
  const auto* const time = times.const_data_ptr<double>();
  auto* const of_picture = picture_BL.mutable_data_ptr<double>();
  auto* const of_noise = noise_BL.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < times.numel(); ++i) {
    const NoiseShares shares = shares_at(objective, time[i]);
    of_picture[i] = shares.picture;
    of_noise[i] = shares.noise;
  }
  const auto share = [&](const at::Tensor& values_BL) {
    return values_BL.to(patches_BLC.scalar_type()).unsqueeze(2);
  };
  return patches_BLC * share(picture_BL) + noise_BLC * share(noise_BL);
}

at::Tensor target_of(Objective objective, const at::Tensor& patches_BLC,
                     const at::Tensor& noise_BLC) {
  return objective == Objective::RectifiedFlow ? noise_BLC - patches_BLC : noise_BLC;
}

double told_time(Objective objective, double time) {
  return objective == Objective::RectifiedFlow ? 1000 * time : ddpm_step(time);
}

at::Tensor denoised(Objective objective, const at::Tensor& x, const at::Tensor& prediction,
                    const TimeStep& step) {
  if (objective == Objective::RectifiedFlow) return x + prediction * (step.to - step.from);
  const NoiseShares from = shares_at(objective, step.from);
  const NoiseShares to = shares_at(objective, step.to);
  const at::Tensor picture = (x - prediction * from.noise) / from.picture;
  return picture * to.picture + prediction * to.noise;
}

}  // namespace armillary::model
