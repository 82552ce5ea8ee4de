// mesh_shape.h: ranks as a mesh of named axes, as numbers: no group of ranks is needed.
//
//   pp  layers     dp  sequences of the batch     cp  tokens of each sequence     tp  matrices
//
//   order tp, cp, dp, pp: rank = tp + 2 (cp + 2 (dp + 3 pp)) for tp 2, cp 2 and dp 3
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace armillary {

enum class MeshAxis : std::uint8_t { Pp, Dp, Cp, Tp };

inline constexpr std::array kMeshAxes{MeshAxis::Pp, MeshAxis::Dp, MeshAxis::Cp, MeshAxis::Tp};

std::string_view to_string(MeshAxis axis);  ///< `pp`, `dp`, `cp`, `tp`.

/// Ranks along each axis; their product is the world. An axis of 1 is an axis left out.
struct MeshShape {
  int pp = 1;
  int dp = 1;
  int cp = 1;
  int tp = 1;
  /// The axes from the one whose members are neighbouring ranks outwards.
  std::array<MeshAxis, 4> order{MeshAxis::Tp, MeshAxis::Cp, MeshAxis::Dp, MeshAxis::Pp};
  bool operator==(const MeshShape&) const = default;

  int size(MeshAxis axis) const;
  int ranks() const { return pp * dp * cp * tp; }
};

/// Checks that a mesh of this shape can be made of `world` ranks.
/// @throws InvalidArgument if an axis is below 1, the order does not name each axis once, or the
/// product of the axes is not `world`; with the nearest legal choice.
void check_mesh(const MeshShape& shape, int world);

/// Index of a rank along an axis. Requires a shape that check_mesh() takes.
int mesh_index(const MeshShape& shape, int rank, MeshAxis axis);

}  // namespace armillary
