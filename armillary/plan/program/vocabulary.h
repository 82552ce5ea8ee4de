// vocabulary.h: the words of a program: tables of kinds of ops with their operands, and of tensors.
//
// The machine (program.h) moves tiles and keeps order; a vocabulary says what its numbers mean, as
// tables without a function. Readers look words up: hazards by the operands that are written, the
// printed grid and JSON by names, the checks by tensors and sides. Only the vocabulary knows the
// result of an op, so each has a proof of its own on top of that of the machine (check.h):
// attention that every pair is counted once (verify.h).
//
//   kind      send   recv   fetch
//   operands  src    dst    to (written), from (read)
//   tensors   table
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "armillary/plan/program/program.h"

namespace armillary::plan {

/// Effect of an op on an operand. Update reads the old value and writes a new one.
enum class Access : std::uint8_t { Read, Write, Update };

/// One operand of an op: its name in print, the effect of the op on it, and the tile that it takes.
struct Operand {
  std::string_view name;
  Access access = Access::Read;
  std::optional<TensorId> tensor = std::nullopt;  ///< Without a tensor it takes any tile.
  bool partial = false;        ///< Required Tile::partial of an operand with a tensor.
  bool may_be_narrow = false;  ///< A narrow tile may stand here.
  /// Name of the operand whose values a written operand takes over unchanged. The op moves nothing
  /// if both are whole tiles of one slot and dtype, which is allowed.
  std::string_view moved_from = {};
};

/// A kind of op.
struct KindWord {
  std::string_view name;
  /// In the order of Op::views. A send or receive has one operand, and each of its views, however
  /// many, is such an operand.
  std::span<const Operand> operands;
  /// The word of the printed grid (grid.h): `%` is the first operand, `&` the operands of the other
  /// side, `!` the accumulators that the op initialises, `@` the ranks of a joint op. Empty:
  /// `name(%)`.
  std::string_view form = {};
  unsigned begins = 0;  ///< Sides whose accumulators the op may initialise, a bit for each.
  /// All operands without a tensor show the same tensor.
  bool same_tensor = false;
  /// The ranks of a group do it together, each with operands of its own: a collective. It is on a
  /// communication lane; no rank goes on before all have come to it. Joint ops are proved, printed
  /// and written, but not simulated or run by the machine yet.
  bool joint = false;
  /// A copy beside compute: it is on a lane that is not that of compute.
  bool beside = false;
  bool reshapes = false;  ///< Operands of one side may differ in blocks and heads.
  unsigned written = 0;  ///< Operands that are written or updated, a bit for each; see kind_word().
};

/// A kind whose `written` is that of its operands.
constexpr KindWord kind_word(KindWord word) {
  for (std::size_t v = 0; v < word.operands.size(); ++v) {
    if (word.operands[v].access != Access::Read) word.written |= 1U << v;
  }
  return word;
}

/// A tensor, of which tiles are parts.
struct TensorWord {
  std::string_view name;
  std::uint8_t side = 0;               ///< Index into Vocabulary::sides.
  bool sums = false;                   ///< Its tiles may be partial.
  std::string_view partial_name = {};  ///< In the grid; empty: the name.
};

/// Tensors of one side have the same blocks. Operands of one side show the same blocks and heads.
struct SideWord {
  std::string_view name;    ///< As in `init_q` of JSON.
  std::string_view plural;  ///< As in "sums of queries".
};

/// Two names that the grid prints as one if they stand for the same part.
struct JointName {
  std::string_view first, second, both;
};

/// A vocabulary has no more kinds and passes, so that readers may have arrays by them.
inline constexpr std::size_t kMostKinds = 16;
inline constexpr std::size_t kMostPasses = 4;

/// All words of a program. Constant tables; programs point to them (RankProgram::words).
struct Vocabulary {
  std::string_view name;
  std::span<const KindWord> kinds;  ///< The first two are `send` and `recv`.
  std::span<const TensorWord> tensors;
  std::span<const SideWord> sides;
  std::span<const JointName> joint_names = {};
  std::span<const std::string_view> passes = {};  ///< Names of the passes that programs are of.

  const KindWord& operator[](Kind kind) const { return kinds[kind.number()]; }
  const TensorWord& operator[](TensorId tensor) const { return tensors[tensor.number()]; }

  /// True if an op of this kind may have so many views.
  bool takes(Kind kind, std::size_t views) const;
  /// True if an op writes or updates its view `v`.
  bool writes(const Op& op, std::size_t v) const {
    return ((*this)[op.kind].written >> (op.is_comm() ? 0 : v) & 1) != 0;
  }
  /// Effect of an op on its view `v`: that of the operand, but an accumulator that the op
  /// initialises is written, not updated. Requires v < op.views.size().
  Access access(const Op& op, std::size_t v) const;
  /// Name of view `v` of an op: that of its operand; the views of a message are src, src1, src2 ..
  std::string operand_name(Kind kind, std::size_t v) const;
};

/// The operand and the kinds of messages, for tables: `kinds[0]` and `kinds[1]` of a vocabulary.
inline constexpr Operand kSentOperand[] = {{.name = "src"}};
inline constexpr Operand kReceivedOperand[] = {{.name = "dst", .access = Access::Write}};
inline constexpr KindWord kSendWord = kind_word({.name = "send", .operands = kSentOperand});
inline constexpr KindWord kRecvWord = kind_word({.name = "recv", .operands = kReceivedOperand});

/// For readers that know messages only: `where` names the reader.
/// @throws InvalidArgument naming the first joint op of the program, if there is one.
void expect_no_joint_ops(std::string_view where, const RankProgram& program);

}  // namespace armillary::plan
