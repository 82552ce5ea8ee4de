// local_keys.h: the keys of one rank in a pass whose queries are on all ranks: the cached keys that
// are here, and those new ones whose pages are here. Internal to replicated_pass.cpp and
// gathered_pass.cpp.
//
//   packed tokens of all parts --page by page--> owners write K and V
//   all queries --attend--> partial results over the keys that are here
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "armillary/kernel/block_attention.h"
#include "armillary/plan/mask/mask.h"
#include "armillary/serve/pass.h"

namespace armillary::serve {

/// The appends of a pass, page by page, and the keys that are here afterwards.
class LocalKeys {
 public:
  /// Begins the appends of all parts. @throws InvalidArgument as KvCache::begin_append.
  LocalKeys(const PassContext& context, std::span<const PassPart> parts, PassAppends& appends);

  /// Packed tokens of all parts; those behind which features are asked for.
  std::int64_t tokens() const { return tokens_; }
  const std::vector<std::int64_t>& lasts() const { return lasts_; }

  /// Writes K and V of the new tokens whose pages are here. `k`, `v` are of all packed tokens, T.
  void write(int layer, const at::Tensor& k_BTGD, const at::Tensor& v_BTGE) const;

  /// The partial results of all packed queries over the keys that are here; (0, -inf) where none
  /// is. Sessions are attended to one by one, so others in the pass change no bit.
  void attend(int layer, const at::Tensor& q_BTHD, const kernel::Partial& result) const;

 private:
  /// Keys of one session that are here, as layers of one window see them.
  struct SeenKeys {
    std::vector<plan::Interval> rows;  ///< Cached ones that are reached, then new ones.
    plan::Mask mask;                   ///< Queries by their place in the part, keys in `rows`.
  };
  /// The queries of one session, and its keys that are here.
  struct KeyPart {
    SessionId session = 0;
    plan::Interval tokens;             ///< Among the packed tokens.
    std::vector<plan::Interval> mine;  ///< Those whose K and V this rank writes.
    std::vector<SeenKeys> reach;       ///< By distinct window.
  };

  KeyPart begin(const PassPart& part, PassAppends& appends);
  SeenKeys seen_keys(const KeyPart& part, std::int64_t window) const;
  void attend_part(int layer, const KeyPart& part, const at::Tensor& q_BTHD,
                   const kernel::Partial& result) const;

  const PassContext& context_;
  const kernel::Kernel& kernel_;
  std::vector<KeyPart> parts_;
  std::vector<plan::Interval> rows_;  ///< The new tokens that are written here.
  at::Tensor mine_L_;                 ///< Those tokens, among the packed ones.
  std::int64_t tokens_ = 0;
  std::vector<std::int64_t> lasts_;
};

}  // namespace armillary::serve
