// presets.h: the descriptions below presets/, which the build puts into the library. Internal to
// sim.
#pragma once

#include <span>
#include <string_view>

namespace armillary::sim {

/// One file: its name without `.toml`, and its text.
struct Preset {
  std::string_view name;
  std::string_view text;
};

std::span<const Preset> cluster_presets();  ///< In alphabetical order.
std::span<const Preset> device_presets();

}  // namespace armillary::sim
