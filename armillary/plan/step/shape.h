// shape.h: a training step, as numbers: the units of a model, the mesh, and how parameters,
// gradients and the optimizer's state are spread over the replicas.
//
//   unit        a part of a model that runs at once: embedding, layer, head
//   replicas    the dp x cp ranks that would hold the same parameters without ZeRO: N of them
//   copies      groups of replicas along dp that hold the same shards (hybrid sharding)
//   sharers     neighbours along tp that have the same values, such as those of a KV head
//   ep          neighbours that have other experts of one layer: a view of the sharers, tp, cp and
//               dp, from the inner ranks on. Replicas of a unit of experts are the ranks with equal
//               indices along ep, along tp too
//   part        the values of a unit that have one use over tp: a block of the programs
//   shard       of each part, what replica r has: UnitShape::shards, or values [r n / N, (r + 1) n
//               / N)
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "armillary/core/mesh_shape.h"
#include "armillary/plan/program/program.h"

namespace armillary::plan::step {

/// Use of values over the ranks of tp.
enum class TpUse : std::uint8_t {
  Split,   ///< Each rank has a part of them: [t n / tp, (t + 1) n / tp) of n.
  Summed,  ///< All ranks have all, and each uses them on its own tokens: gradients are partial.
  Alike,   ///< All ranks have all, and use them on the same tokens: gradients are equal.
  Shared,  ///< Split over groups of sharers; each uses them on its own tokens or heads.
  /// Experts: ranks along ep have a part of them, and use it on the tokens of all of ep.
  Experts,
};
inline constexpr std::size_t kTpUses = 5;

/// Values of each shard, by use.
using UseShards = std::array<std::vector<std::int64_t>, kTpUses>;

/// A unit, with the numbers of values that it owns, by their use over tp. All are one if tp is 1.
struct UnitShape {
  std::string name;
  std::int64_t split = 0;
  std::int64_t summed = 0;
  std::int64_t alike = 0;
  std::vector<int> uses;  ///< Other units whose values it uses too, ascending: a tied embedding.
  std::int64_t shared = 0;
  std::vector<UseShards> shards = {};  ///< By rank along tp, of experts along ep. Empty: equal.
  std::int64_t experts = 0;            ///< A unit that has them has no other values.
};

/// Bytes of a value. Masters are what the optimizer updates; gradients and its state are as wide.
struct ValueBytes {
  int weight = 4;  ///< As models are given it, and as it is gathered.
  int master = 4;
};

struct StepShape {
  std::vector<UnitShape> units;  ///< In the order of forward.
  MeshShape mesh;                ///< pp is 1.
  int microbatches = 1;
  int zero = 0;  ///< ZeRO stage: 0 none, 1 state, 2 and gradients, 3 and parameters are sharded.
  /// Stage 3: gathered parameters are freed after forward and gathered again for backward.
  bool reshard_after_forward = true;
  /// Between units each rank of tp has tokens of its own; otherwise all have the same.
  bool sequence_parallel = true;
  int copies = 1;   ///< A divisor of dp. The copies are the outer ranks along dp.
  int sharers = 1;  ///< A divisor of tp below tp.
  ValueBytes bytes = {};
  /// The optimizer's state rests on the host, and is on the device for the update of a unit.
  bool state_on_host = false;
  /// Ranks that share the experts of a layer: whole axes from the sharers outwards, the last of
  /// them cut.
  int ep = 1;
};

/// @throws InvalidArgument naming what is wrong and the nearest legal choice.
void check_shape(const StepShape& shape);

/// The ep of the mesh, none above `most`, that is nearest to a wish; of two equally near ones, the
/// smaller. Requires copies that divide dp, sharers that divide tp, and most >= 1.
int nearest_ep(const StepShape& shape, int wish, int most);

/// Axes of a step as bits, 1 << MeshAxis. Copies are an axis of their own, with the rest of dp
/// inside them; so are the sharers inside tp, and the rest of the axis of which ep takes a part,
/// outside of that part.
using AxisSet = unsigned;
constexpr AxisSet bit(MeshAxis axis) {
  return 1U << static_cast<unsigned>(axis);
}
inline constexpr AxisSet kCopiesAxis = 1U << kMeshAxes.size();
inline constexpr AxisSet kSharersAxis = kCopiesAxis << 1;
inline constexpr AxisSet kRestAxis = kSharersAxis << 1;
inline constexpr std::size_t kStepAxes = kMeshAxes.size() + 3;
/// The names: `dp, cp`.
std::string axis_names(AxisSet axes);

struct StepPart {
  int unit = 0;
  TpUse use = TpUse::Split;
  std::int64_t values = 0;  ///< Over all ranks of tp, each once.
};

/// Tables that follow from a shape. The stage of a unit is 0 if it has one replica; axes of 1 are
/// left out.
class StepTables {
 public:
  /// @throws InvalidArgument as check_shape().
  explicit StepTables(const StepShape& shape);

  const StepShape& shape() const { return shape_; }
  int units() const { return static_cast<int>(shape_.units.size()); }
  /// The largest stage of a unit.
  int zero() const { return most_shards() == 1 ? 0 : shape_.zero; }
  int zero(int unit) const { return shards(unit) == 1 ? 0 : shape_.zero; }
  bool has_experts() const;
  bool has_experts(int unit) const { return shape_.units[unit].experts > 0; }

  const std::vector<StepPart>& parts() const { return parts_; }
  /// The parts of a unit that are not empty.
  const BlockIds& parts_of(int unit) const { return parts_of_[unit]; }
  /// The units whose values this one uses, ascending.
  const std::vector<int>& used_by(int unit) const { return used_[unit]; }
  /// The units that use values of this one, ascending.
  const std::vector<int>& users_of(int unit) const { return users_[unit]; }

  int tp_index(Rank rank) const { return mesh_index(shape_.mesh, rank, MeshAxis::Tp); }
  int ep_index(Rank rank) const { return ep_index_[rank]; }
  /// Replicas of a unit, each with a shard: ranks along shard_axes(), in their order.
  int shards(int unit) const { return has_experts(unit) ? expert_replicas_ : replicas_; }
  int most_shards() const {
    return has_experts() ? std::max(replicas_, expert_replicas_) : replicas_;
  }
  int replica(int unit, Rank rank) const {
    return has_experts(unit) ? expert_replica_[rank] : replica_[rank];
  }
  /// Heads of tiles of parameters: shards.
  Heads all_shards(int unit) const { return {0, shards(unit)}; }
  Heads own_shard(int unit, Rank rank) const {
    return {replica(unit, rank), replica(unit, rank) + 1};
  }
  /// The values of some shards of a part on a rank.
  std::int64_t values(int part, Rank rank, const Heads& shards) const;

  AxisSet replica_axes() const { return with_ranks(bit(MeshAxis::Dp) | bit(MeshAxis::Cp)); }
  AxisSet copies_axis() const { return with_ranks(kCopiesAxis); }
  /// Tp, with the sharers.
  AxisSet tp_axis() const { return with_ranks(bit(MeshAxis::Tp) | kSharersAxis); }
  /// Ep: parts of these axes.
  AxisSet ep_axes() const { return ep_axes_; }
  AxisSet expert_replica_axes() const { return (replica_axes() | tp_axis()) & ~ep_axes_; }
  /// The axes of the replicas of a unit.
  AxisSet shard_axes(int unit) const {
    return has_experts(unit) ? expert_replica_axes() : replica_axes();
  }
  /// The axes of tp along which all ranks have the same values.
  AxisSet same_axes(TpUse use) const;
  /// The axes over which the norm is summed, and those of them along which ranks have the same
  /// summed gradients of a part, which one of them counts.
  AxisSet norm_axes() const;
  AxisSet same_in_norm(int part) const;
  bool counts_in_norm(int part, Rank rank) const;
  /// The number of ranks along tp that have the same values.
  int holders(TpUse use) const;
  /// The axes of more than one rank, with what is cut off them.
  AxisSet with_ranks(AxisSet axes) const;
  /// The sets of such axes, none empty: each is a group of every rank, in this order.
  const std::vector<AxisSet>& axis_sets() const { return axis_sets_; }
  /// The ranks that differ from `rank` along these axes alone, ascending.
  std::vector<Rank> group(AxisSet axes, Rank rank) const;
  /// The ranks of an axis, by the number of its bit, and the place of a rank along it.
  int size(std::size_t axis) const { return axes_[axis].size; }
  int index(std::size_t axis, Rank rank) const {
    return rank / axes_[axis].stride % axes_[axis].size;
  }

 private:
  /// Ranks along an axis, and how far neighbours are apart.
  struct StepAxis {
    int size = 1;
    int stride = 1;
  };

  /// Cuts the axis of which ep takes a part.
  void add_ep();
  /// The places of all ranks among those that differ along these axes alone.
  std::vector<int> places_along(AxisSet axes) const;

  StepShape shape_;
  int replicas_ = 1;
  int expert_replicas_ = 1;
  std::array<StepAxis, kStepAxes> axes_;  ///< By number of the bit.
  AxisSet ep_axes_ = 0;
  AxisSet cut_ = 0;  ///< The axis that has a rest.
  std::vector<StepPart> parts_;
  std::vector<BlockIds> parts_of_;  ///< By unit.
  std::vector<std::vector<int>> used_;
  std::vector<std::vector<int>> users_;
  std::vector<int> replica_, expert_replica_, ep_index_;  ///< By rank.
  std::vector<AxisSet> axis_sets_;
};

}  // namespace armillary::plan::step
