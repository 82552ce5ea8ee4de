// objective.h: the ways in which noise is put into pictures and taken out of them, with a time that
// runs from 0, the picture, to 1, noise.
//
//   noisy x = p picture + n noise, p and n by the time       network(x, time) = target
//
//   rectified_flow   p = 1 - t, n = t; target: noise - picture       (arXiv:2209.03003)
//   ddpm             p^2 + n^2 = 1, p^2 falls in 1000 steps with beta from 1e-4 to 0.02; target:
//                    noise                                           (arXiv:2006.11239)
//
// Sampling steps are those of Euler along dx/dt = target, and for ddpm DDIM's without noise
// (arXiv:2010.02502).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace armillary::model {

enum class Objective : std::uint8_t { RectifiedFlow, Ddpm };

/// "rectified_flow" and "ddpm".
const std::vector<std::string>& objective_names();
/// @throws InvalidArgument with the nearest name.
Objective parse_objective(const std::string& name);

/// Shares of the picture and of the noise at a time from 0 to 1; at 0 the picture alone.
struct NoiseShares {
  double picture;
  double noise;
};
NoiseShares shares_at(Objective objective, double time);

/// Pictures with noise, of the dtype of `patches`. Fields of picture.h.
at::Tensor noisy_patches(Objective objective, const at::Tensor& patches_BLC,
                         const at::Tensor& noise_BLC, const at::Tensor& times_BL);

/// The target of the network.
at::Tensor target_of(Objective objective, const at::Tensor& patches_BLC,
                     const at::Tensor& noise_BLC);

/// The time as the network is told it: 1000 t, or the number of the step.
double told_time(Objective objective, double time);

/// x at the time `to`, from x at the later time `from` and the network's prediction there.
struct TimeStep {
  double from;
  double to;
};
at::Tensor denoised(Objective objective, const at::Tensor& x, const at::Tensor& prediction,
                    const TimeStep& step);

}  // namespace armillary::model
