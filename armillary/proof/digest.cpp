// Digests by XXH3. A value is hashed field by field, each number as 64 bits, so that padding and
// the sizes of types do not count.
#include "armillary/proof/digest.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <concepts>
#include <memory>

#include "armillary/version.h"

namespace armillary::proof {
namespace {

/// Hashes numbers, texts, and the structures of a plan, one after the other. A text or list is
/// preceded by its length, so that inputs which are cut into parts differently hash differently.
class Hash {
 public:
  Hash() { XXH3_128bits_reset(state_.get()); }

  /// Numbers, flags and enumerators, as 64 bits.
  template <std::integral T>
  void add(T value) {
    const auto wide = static_cast<std::int64_t>(value);
    XXH3_128bits_update(state_.get(), &wide, sizeof(wide));
  }
  void add(std::string_view text) {
    add(text.size());
    XXH3_128bits_update(state_.get(), text.data(), text.size());
  }
  void add(const Digest& digest) {
    add(digest.low);
    add(digest.high);
  }
  template <class T>
  requires std::is_enum_v<T>
  void add(T value) { add(static_cast<int>(value)); }
  template <class Tag>
  void add(plan::Word<Tag> word) {
    add(word.number());
  }
  // One function for each structure; it lists all fields. A new field has to be added here too.
  void add(const plan::Heads& heads) { add_all(heads.begin, heads.end); }
  void add(const plan::Interval& range) { add_all(range.begin, range.end); }
  void add(const plan::BlockIds& ids) {
    add(ids.runs().size());
    for (const plan::IdRun& run : ids.runs()) add_all(run.first, run.last);
  }
  void add(const plan::Run& run) { add_all(run.begin, run.count, run.step, run.width); }
  void add(const plan::Band& band) { add_all(band.q, band.k, band.lo, band.hi); }
  void add(const plan::Block& block) { add_all(block.owner, block.runs); }
  void add(const plan::Slot& slot) { add_all(slot.bytes, slot.external); }
  void add(const plan::Tile& tile) {
    add_all(tile.tensor, tile.partial, tile.heads, tile.blocks, tile.slot, tile.narrow);
  }
  void add(const plan::View& view) { add_all(view.tile, view.heads, view.blocks); }
  void add(const plan::Op& op) {
    add_all(op.kind, op.lane, op.step, op.peer, op.collective, op.init[0], op.init[1],
            op.zero_copy);
    add_list(op.views);
  }
  /// Lists, element by element.
  template <class T>
  void add(const std::vector<T>& list) {
    add_list(list);
  }
  /// Adds each value in turn.
  template <class... Values>
  void add_all(const Values&... values) {
    (add(values), ...);
  }

  Digest digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {hash.low64, hash.high64};
  }

 private:
  template <class List>
  void add_list(const List& list) {
    add(list.size());
    for (const auto& value : list) add(value);
  }

  /// The state of the hash needs an alignment that only its own functions give it.
  struct FreeHash {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, FreeHash> state_{XXH3_createState()};
};

}  // namespace

std::string to_string(const Digest& digest) {
  return fmt::format("{:016x}{:016x}", digest.high, digest.low);
}

Digest digest_of(std::string_view text) {
  Hash hash;
  hash.add(text);
  return hash.digest();
}

// The strategy by its text, which is one for equal options.
Digest digest_of(const plan::Problem& problem, const plan::Strategy& strategy) {
  return digest_of_text(problem, to_string(strategy));
}

Digest digest_of_text(const plan::Problem& problem, std::string_view strategy) {
  Hash hash;
  hash.add(strategy);
  hash.add_all(problem.world, problem.batch, problem.heads, problem.kv_heads, problem.head_dim,
               problem.value_dim, problem.dtype, problem.layout.kind, problem.layout.stripe,
               problem.return_lse, problem.transfer_dtype);
  hash.add_all(problem.mask.q_len(), problem.mask.kv_len(), problem.mask.bands());
  return hash.digest();
}

Digest digest_of(const plan::Blocks& blocks) {
  Hash hash;
  hash.add_all(blocks.q, blocks.kv);
  return hash.digest();
}

Digest digest_of(const plan::RankProgram& program, const Digest& blocks) {
  Hash hash;
  hash.add_all(blocks, program.rank, program.slots, program.tiles, program.ops, program.inputs,
               program.outputs, program.saved);
  if (!program.groups.empty()) hash.add(program.groups);
  return hash.digest();
}

std::string_view version() {
  return ARMILLARY_VERSION;
}

}  // namespace armillary::proof
