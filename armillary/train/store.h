// store.h: the parameters of a model on one rank, their gradients and the optimizer's state, unit
// by unit, each unit's in flat buffers of its own: a gather or a sum of a unit over ranks is one
// collective.
//
//   gather, use(unit) --> Weights --> forward, drop_values
//   begin_backward, use(unit) --> backward --> sum_along_tp, start_sum --> sum_share
//   at stage 0 start_sum --> start_gather_sum
//   pieces()  --> optimizer, norm, checkpoint: they see no units and no model --> gather_values
//   start_fetch, staged_pieces --> optimizer --> place_staged, start_move_back: state on the host
//
// Ranks with the same parameters may divide them (ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054,
// section 5). Each then owns whole rows of a unit's parameters, about 1/N of its elements. Models
// are given the values of the optimizer, the masters, or those rounded to bf16 (dtypes.h), which
// then are what is gathered:
//
//                       fp32                          bf16
//   bytes a parameter   values   gradients   state    values   gradients   masters, state
//   stage 0               4         4         8         2         4          4 + 8
//   stage 1               4         4         8/N       2         4          4/N + 8/N
//   stage 2               4         4/N       8/N       2         4/N        4/N + 8/N
//   stage 3               4/N       4/N       8/N       0         4/N        4/N + 8/N
//
// and at stage 2 the whole gradients of two units, at stage 3 their whole values as well, 4 or 2
// bytes each. State on the host is there alone, but for two units' at most. Gradients that travel
// in bf16 have 2 bytes more, but only those of the unit before, at stage 0 of the two before, are
// there meanwhile. With fp64 all are twice those of fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"
#include "armillary/proof/digest.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/flat_buffer.h"
#include "armillary/train/host_lane.h"

namespace armillary::train {

/// The part of a parameter that a rank updates, with all that belongs to it: contiguous tensors of
/// the shape range.size, fp32 or fp64.
struct Piece {
  std::string name;
  model::GlobalRange range;
  at::Tensor value;  ///< The master.
  at::Tensor gradient;
  at::Tensor mean, square;  ///< AdamW's state.
  /// A rank before this one along tp has the same: this one neither counts it in a norm nor saves
  /// it.
  bool is_copy = false;
  int unit = 0;            ///< The unit that owns the parameter.
  bool is_expert = false;  ///< Its replicas are Replicas::experts.
  double sign_rate = 0;    ///< As in model/parameter.h.
};

/// The ranks among which a store divides its parameters, in groups that must outlive it.
struct Replicas {
  /// Those that divide: at stage 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters
  /// too. Null: this rank alone.
  comm::Communicator* sharded = nullptr;
  int zero = 0;
  /// Those with the same share as this rank, whose gradients are summed after those of `sharded`
  /// (hybrid sharding). Null: none.
  comm::Communicator* copies = nullptr;
  /// Those along tp, each with its ranges of the parameters. Null: this rank alone.
  comm::Communicator* tp = nullptr;
  /// Those that have the same experts, and divide these as `sharded` divide all others. Null: this
  /// rank alone. Copies are the same.
  comm::Communicator* experts = nullptr;
  /// Those along ep, each with its experts. Null: this rank has all.
  comm::Communicator* ep = nullptr;
};

/// The place of the optimizer's state: moments, and masters that are others than the values that
/// ranks gather or models are given.
struct StatePlace {
  bool on_host = false;
  double timeout_s = 100;  ///< Longest wait for a move from or to the host.
};

/// Elements of a unit that each of `ranks` owns, in the order of ranks: whole rows of dim 0 of its
/// parameters, at the cuts nearest to equal parts.
std::vector<std::int64_t> shares_of(std::span<const model::GlobalRange> parameters, int ranks);

/// One per rank. Its tensors are views into it and valid as long as it lives. Functions on a unit
/// are collective over the replicas where they say so: all make the same calls in the same order.
/// Threads: that of the rank.
class Store {
 public:
  /// Draws the initial values from `seed` (model/initial_values.h). Collective over tp.
  /// @throws InvalidArgument as check_parameters, or for a stage that is not 0 to 3.
  Store(const model::Model& model, std::int64_t seed, const Replicas& replicas = {},
        const Dtypes& dtypes = {}, const StatePlace& place = {});
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  int units() const { return static_cast<int>(units_.size()); }
  /// The stage; 0 if no unit has replicas.
  int zero() const { return zero_; }
  int zero(int unit) const { return units_.at(static_cast<std::size_t>(unit)).zero; }
  const Dtypes& dtypes() const { return dtypes_; }
  const Replicas& replicas() const { return replicas_; }
  /// Those that divide a unit, or at stage 0 have all of it. Null: this rank alone.
  comm::Communicator* replicas(int unit) const {
    return units_.at(static_cast<std::size_t>(unit)).replicas;
  }
  /// The parameters of the model, whole, unit by unit.
  std::vector<model::Parameter> parameters() const;
  /// The group of so many neighbours along tp that have some ranges alike; null: no parameter is
  /// shared so.
  comm::Communicator* sharers(int ranks) const;

  /// Writes the values of this rank's range along tp of each parameter to a flat tensor of the
  /// masters' dtype, in row-major order, unit by unit.
  using Fill = std::function<void(const std::string& name, const model::GlobalRange&,
                                  const at::Tensor& values)>;
  void fill(const Fill& fill);
  /// Digests of all values of the last fill(), of the initial values before: equal on replicas that
  /// were given the same; that of experts on the replicas of experts.
  const proof::Digest& digest() const { return digest_; }
  const proof::Digest& expert_digest() const { return expert_digest_; }
  /// Likewise of those that several ranks along tp have, by the number of these: equal on
  /// sharers().
  const std::map<int, proof::Digest>& digests_along_tp() const { return digests_along_tp_; }

  /// The weights of a unit, which stay whole until release(). Backward adds to their gradients in
  /// the dtype of masters. Stage 3: collective, waits for the gather.
  model::Weights use(int unit);
  /// The same with any values, for a run without tokens. Moves nothing.
  model::Weights blank(int unit);
  /// Begins the gather for the use of a unit. Stage 3: collective; others, and units that are
  /// whole: nothing.
  void prefetch(int unit);
  /// Stage 3: gives the memory of the unit's weights back. Views that autograd has saved are valid
  /// again when the unit is used again.
  void release(int unit);

  // The same for what one unit owns, move by move, for a program that says when (step_runner.h).

  /// Begins the gather of the unit's values. Stage 3; collective.
  void gather(int unit);
  /// Waits for it, if it is under way, and gives the memory of the values back.
  void drop_values(int unit);
  /// Sums those of the unit's gradients that as many ranks along tp have as the group, one of
  /// sharers(). Collective over it.
  void sum_along_tp(int unit, comm::Communicator& group);
  /// Begins to sum the unit's gradients over the replicas, each rank its share of them, in the
  /// dtype in which they travel, but numbers with a sign_rate, which count tokens, in that of
  /// masters; passes are added in that of masters. Stages 1 to 3 wait for the sum before. Stages 0
  /// and 1: once a step. Collective.
  void start_sum(int unit);
  /// Stage 0, once for each sum: waits for it, then begins to give all ranks the shares of all.
  /// Collective.
  void start_gather_sum(int unit);
  /// Waits for the sums that are under way, and their gathers. Stages 2 and 3 give the memory of
  /// the whole gradients back.
  void finish_sums();
  /// Sums the rank's share of the unit's gradients over ranks that have the same, the copies, in
  /// the same dtypes. Collective.
  void sum_share(int unit, comm::Communicator& group);
  /// Gives the values of the unit's pieces to models, at stages 1 and 2 begins to give them to
  /// those of all ranks. Not at stage 3. Collective.
  void start_gather_values(int unit);
  /// Waits for all gathers.
  void finish_gathers();

  // State on the host passes through two buffers, 0 and 1. Moves follow each other beside the
  // rank's thread.

  static constexpr int kBuffers = 2;
  /// Begins to copy the unit's state into a buffer, whose state before must be on its way back.
  void start_fetch(int unit, int buffer);
  /// Waits for the fetch. The unit's pieces, with their state in the buffer.
  std::vector<Piece> staged_pieces(int unit, int buffer);
  /// After the update of these: masters in the buffer give models their values.
  void place_staged(int unit, int buffer);
  /// Begins to copy the unit's state back. The buffer's memory is free behind it.
  void start_move_back(int unit, int buffer);
  /// Waits for all moves.
  void finish_moves();

  void zero_gradients();
  /// Before the backward of a unit, which adds to its gradients.
  void begin_backward(int unit);
  /// Bytes of the gradients of all units, as they travel.
  std::int64_t gradient_bytes() const;
  /// Between the backward of a unit and its first sum: the first parameter that it uses whose
  /// gradient on this rank is not finite; empty if there is none.
  std::string not_finite(int unit) const;

  /// After the values of pieces have changed: gives them to models, at stages 1 and 2 to those of
  /// all ranks. Collective.
  void gather_values();

  /// The parts that this rank updates, in the order in which the model declares parameters, unit by
  /// unit.
  const std::vector<Piece>& pieces() const { return pieces_; }
  /// The values that other ranks hold too: all of this rank along tp, but at stage 3; and masters
  /// that are others than these, where all replicas or copies of the share have them.
  struct SharedValue {
    std::string name;
    proof::Digest digest;
    int along_tp = 1;        ///< Ranks along tp that have it.
    bool in_shares = false;  ///< All ranks that divide its unit have it.
    bool is_expert = false;  ///< The replicas of experts have it, others not.
  };
  std::vector<SharedValue> shared_values() const;
  /// A part of the masters, divided over replicas, of a parameter that several ranks along tp have.
  /// These list the same parts, each of which one of the replicas owns.
  struct SharedPart {
    std::string name;
    int along_tp = 1;
    std::optional<proof::Digest> digest;  ///< None: another replica owns it.
  };
  std::vector<SharedPart> shared_parts() const;
  /// The values of this rank between two steps: the pieces', then those that models are given,
  /// which at stage 3 are gathered when they are used.
  struct HeldValue {
    std::string name;
    at::Tensor value;
    bool is_own = false;  ///< A piece's.
  };
  std::vector<HeldValue> held_values() const;
  /// Bytes of values, gradients and state that are held between two steps; not those on the host.
  std::int64_t bytes_at_rest() const;
  /// Bytes of state that rests on the host.
  std::int64_t bytes_on_host() const;
  /// The most bytes so far: those at rest, whole values and gradients beside shares, sums that are
  /// to be added, and state in buffers.
  std::int64_t peak_bytes() const { return peak_bytes_ == 0 ? bytes_at_rest() : peak_bytes_; }
  /// Seconds of this rank, so far, in waits for gathers, sums and moves, and in those sums that
  /// block: what compute has not hidden.
  double waited_s() const { return waited_s_; }

  /// @throws InvalidArgument if a gradient no longer lies in this store's memory, as after
  /// `zero_grad(set_to_none)` in a model: it would be lost.
  void check_views() const;

 private:
  /// A parameter, or its range along tp, as models see it.
  struct Weight {
    model::Parameter parameter;
    model::GlobalRange range;
    int copies = 1;          ///< Ranks along tp with the same range.
    std::int64_t begin = 0;  ///< In the buffers of its unit.
    at::Tensor value = {};   ///< A leaf; its .grad is `gradient`.
    at::Tensor gradient = {};
  };
  /// Elements [begin, end) of the buffers of a unit.
  struct ElementRange {
    std::int64_t begin = 0, end = 0;
  };
  struct Unit {
    std::string name;
    bool has_experts = false;
    comm::Communicator* replicas = nullptr;  ///< Those that divide it, or null.
    int zero = 0;                            ///< Stage; 0 without replicas.
    std::vector<std::size_t> used;           ///< Numbers of the weights that it uses.
    std::vector<std::size_t> owners;         ///< Units in whose buffers those lie.
    std::vector<std::int64_t> counts;        ///< Elements that each replica owns, or sums.
    std::int64_t begin = 0;                  ///< The first element that this rank owns.
    std::vector<ElementRange> signs;         ///< Elements of parameters with a sign_rate.
    FlatBuffer values, gradients;            ///< Whole; values as models are given them.
    /// This rank's share, flat; of the values its masters.
    at::Tensor own_values = {}, own_gradients = {}, means = {}, squares = {};
    at::Tensor state = {};   ///< On the host: means, squares and masters with them, one tensor.
    bool is_placed = false;  ///< Models have the values of a buffer.
    comm::Request gather = {};
    bool has_sum = false;  ///< own_gradients has that of an earlier sequence of this step.
  };
  /// A sum of gradients under way, or at stage 0 its gather.
  struct GradientSum {
    std::size_t unit = 0;
    bool is_added = false;     ///< To own_gradients, which have an earlier sum.
    bool is_gathered = false;  ///< The sum is done.
    at::Tensor message = {};   ///< Gradients as they travel, if they are rounded for it.
    at::Tensor sum = {};       ///< Their sum, unless it is written to its place at once.
    comm::Request request = {};
    /// Beside rounded ones, those of parameters with a sign_rate, which are not.
    at::Tensor signs = {}, sign_sum = {};
    std::vector<std::int64_t> sign_counts = {};  ///< Elements of each replica.
    comm::Request sign_request = {};
  };

  /// A buffer of a state on its way.
  struct StateBuffer {
    at::Tensor values = {};    ///< As Unit::state; of the lane's thread while a move is under way.
    int unit = -1;             ///< Whose state it has; -1: none.
    std::int64_t fetched = 0;  ///< The number of the move.
  };

  void add_unit(const std::string& name, const std::vector<model::Parameter>& parameters);
  /// This rank's range of a parameter, whole over its replicas.
  model::GlobalRange range_here(const model::Parameter& parameter) const;
  void add_pieces(const Unit& unit, std::size_t first_weight);
  Unit& unit_at(int unit);
  model::Weights weights_of(const Unit& unit) const;
  std::int64_t own_count(const Unit& unit) const;
  /// The part of a tensor of all gradients of a unit that this rank sums at stage 0.
  static at::Tensor own_sum(const Unit& unit, const at::Tensor& all);
  bool rounds_sums() const { return dtypes_.reduce != dtypes_.master; }
  void finish(GradientSum& sum);
  void finish_gathered_sums();
  /// Whether masters have memory beside that of the values that models are given.
  bool has_own_masters(const Unit& unit) const {
    return unit.zero == 3 || dtypes_.param != dtypes_.master;
  }
  /// Whether these are with the state; at stage 3 ranks gather them.
  bool masters_in_state(const Unit& unit) const { return unit.zero < 3 && has_own_masters(unit); }
  std::int64_t state_bytes(const Unit& unit) const;
  StateBuffer& buffer_of(int unit, int buffer);
  at::Tensor place_own_values(Unit& unit) const;
  void start_gather(Unit& unit);
  void wait_for_gather(Unit& unit);
  void count_bytes();
  /// Views of the elements with a sign_rate in [begin, begin + values.numel()) of a unit's buffer.
  static std::vector<at::Tensor> sign_views(const Unit& unit, const at::Tensor& values,
                                            std::int64_t begin);
  static at::Tensor joined(const std::vector<at::Tensor>& views);
  static void write_joined(const at::Tensor& values, const std::vector<at::Tensor>& views);
  void start_sign_sum(Unit& unit, GradientSum& sum) const;
  static proof::Digest digest_of_values(const at::Tensor& values);
  std::vector<const Weight*> owned_by(const Unit& unit) const;
  void add_share_ends(std::set<std::int64_t>& ends, const std::vector<const Weight*>& owned,
                      const Weight& in, int tp_index) const;

  const Replicas replicas_;
  const int zero_;
  const Dtypes dtypes_;
  const StatePlace place_;
  std::vector<Unit> units_;
  std::vector<Weight> weights_;
  std::vector<Piece> pieces_;
  std::vector<GradientSum> sums_;
  std::int64_t peak_bytes_ = 0;
  double waited_s_ = 0;
  /// The ranks along tp that share a range, by their number; those of all ranks are `tp` itself.
  std::map<int, std::unique_ptr<comm::Communicator>> shared_;
  proof::Digest digest_, expert_digest_;
  std::map<int, proof::Digest> digests_along_tp_;
  std::array<StateBuffer, kBuffers> buffers_;
  std::int64_t staged_bytes_ = 0;   ///< State in buffers.
  std::unique_ptr<HostLane> lane_;  ///< Last: it copies from and to the above. Null: no moves.
};

}  // namespace armillary::train
