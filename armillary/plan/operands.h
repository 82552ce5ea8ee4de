// operands.h: the table of the ops of attention, and the places of their operands by name.
//
// A row lists the operands in the order of Op::views: the name, the effect of the op, and the tile
// that the operand takes. The constants below give places in Op::views at compile time; they are
// looked up by name in the same table, so a name that it does not have does not compile.
//
//   op.views[FinishOperand::kPartOut]   the view of operand part_out of a finish
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "armillary/core/error.h"
#include "armillary/plan/words.h"

namespace armillary::plan {

/// The operands, one table per kind of op. Send, recv, add, copy and clear take any tensor. The
/// tables of ops that write results are derived: attend_all has the operands of attend, finish
/// those of merge.
namespace operand_tables {

using enum Access;

/// The table of the op that writes results: the same operands, but each accumulator that is updated
/// becomes a final tile that is written.
template <std::size_t N>
constexpr std::array<Operand, N> with_results(std::array<Operand, N> table) {
  for (Operand& operand : table) {
    operand.may_be_narrow = false;
    if (operand.access != Update) continue;
    operand.access = Write;
    operand.partial = false;
  }
  return table;
}

inline constexpr std::array<Operand, 5> kAttend{{{"q", Read, Tensor::Q},
                                                 {"k", Read, Tensor::K},
                                                 {"v", Read, Tensor::V},
                                                 {"out", Update, Tensor::Out, true},
                                                 {"lse", Update, Tensor::Lse, true}}};
inline constexpr std::array<Operand, 9> kAttendGrad{{{"q", Read, Tensor::Q},
                                                     {"k", Read, Tensor::K},
                                                     {"v", Read, Tensor::V},
                                                     {"dout", Read, Tensor::DOut},
                                                     {"lse", Read, Tensor::Lse},
                                                     {"delta", Read, Tensor::Delta},
                                                     {"dq", Update, Tensor::DQ, true},
                                                     {"dk", Update, Tensor::DK, true},
                                                     {"dv", Update, Tensor::DV, true}}};
inline constexpr std::array<Operand, 4> kMerge{{{"out", Update, Tensor::Out, true},
                                                {"lse", Update, Tensor::Lse, true},
                                                {"part_out", Read, Tensor::Out, true, true},
                                                {"part_lse", Read, Tensor::Lse, true}}};
inline constexpr std::array<Operand, 2> kAdd{
    {{"acc", Update}, {.name = "part", .access = Read, .may_be_narrow = true}}};
inline constexpr std::array<Operand, 2> kCopy{
    {{.name = "dst", .access = Write, .may_be_narrow = true, .moved_from = "src"}, {"src", Read}}};
inline constexpr std::array<Operand, 1> kClear{{{"dst", Write}}};
inline constexpr std::array<Operand, 4> kDelta{{{"delta", Write, Tensor::Delta},
                                                {"dout", Read, Tensor::DOut},
                                                {"out", Read, Tensor::Out},
                                                {"lse", Read, Tensor::Lse}}};
inline constexpr auto kFinish = [] {
  auto table = with_results(kMerge);
  table[0].moved_from = "part_out";
  table[1].moved_from = "part_lse";
  return table;
}();
inline constexpr auto kAttendAll = with_results(kAttend);
/// A gradient is whole, as a final tile, or a part of it, rounded to travel.
inline constexpr auto kAttendGradAll = [] {
  auto table = with_results(kAttendGrad);
  for (Operand& operand : table) operand.may_be_narrow = operand.access == Write;
  return table;
}();

}  // namespace operand_tables

/// All kinds, in the order of OpKind.
inline constexpr std::array<KindWord, kOpKinds> kOpTable = [] {
  namespace table = operand_tables;
  constexpr unsigned kOfQ = 1U << kQSide;
  constexpr unsigned kOfKv = 1U << kKvSide;
  std::array<KindWord, kOpKinds> kinds{
      {kSendWord,
       kRecvWord,
       {.name = "attend", .operands = table::kAttend, .form = "%*&!", .begins = kOfQ},
       {.name = "attend_grad",
        .operands = table::kAttendGrad,
        .form = "grad(%*&)!",
        .begins = kOfQ | kOfKv},
       {.name = "merge", .operands = table::kMerge},
       {.name = "add", .operands = table::kAdd, .same_tensor = true},
       {.name = "copy", .operands = table::kCopy, .same_tensor = true},
       {.name = "clear", .operands = table::kClear},
       {.name = "delta", .operands = table::kDelta, .form = "%"},
       {.name = "finish", .operands = table::kFinish},
       {.name = "attend_all", .operands = table::kAttendAll, .form = "%*&:all"},
       {.name = "attend_grad_all", .operands = table::kAttendGradAll, .form = "grad(%*&):all"}}};
  for (KindWord& kind : kinds) kind = kind_word(kind);
  return kinds;
}();

/// True if an op writes or updates its view `v`: access() is not Read.
inline bool writes(const Op& op, std::size_t v) {
  return (kOpTable[op.kind.number()].written >> (op.is_comm() ? 0 : v) & 1) != 0;
}

/// The place of the operand of that name in Op::views, at compile time only. A name that the kind
/// does not have is a compile error.
consteval std::size_t operand_place(OpKind kind, std::string_view name) {
  const std::span<const Operand> table = kOpTable[static_cast<std::size_t>(kind)].operands;
  for (std::size_t v = 0; v < table.size(); ++v) {
    if (table[v].name == name) return v;
  }
  throw InternalError("no operand of this name");
}

/// Places that are the same in attend, attend_all, attend_grad and attend_grad_all.
struct QkvOperand {
  static constexpr std::size_t kQ = operand_place(OpKind::Attend, "q");
  static constexpr std::size_t kK = operand_place(OpKind::Attend, "k");
  static constexpr std::size_t kV = operand_place(OpKind::Attend, "v");
  static_assert(kQ == operand_place(OpKind::AttendGrad, "q"));
  static_assert(kK == operand_place(OpKind::AttendGrad, "k"));
  static_assert(kV == operand_place(OpKind::AttendGrad, "v"));
};

/// Places in attend and attend_all.
struct AttendOperand : QkvOperand {
  static constexpr std::size_t kOut = operand_place(OpKind::Attend, "out");
  static constexpr std::size_t kLse = operand_place(OpKind::Attend, "lse");
};

/// Places in attend_grad and attend_grad_all.
struct AttendGradOperand : QkvOperand {
  static constexpr std::size_t kDOut = operand_place(OpKind::AttendGrad, "dout");
  static constexpr std::size_t kLse = operand_place(OpKind::AttendGrad, "lse");
  static constexpr std::size_t kDelta = operand_place(OpKind::AttendGrad, "delta");
  static constexpr std::size_t kDQ = operand_place(OpKind::AttendGrad, "dq");
  static constexpr std::size_t kDK = operand_place(OpKind::AttendGrad, "dk");
  static constexpr std::size_t kDV = operand_place(OpKind::AttendGrad, "dv");
};

/// Places in merge and finish, whose table is made from that of merge.
struct MergeOperand {
  static constexpr std::size_t kOut = operand_place(OpKind::Merge, "out");
  static constexpr std::size_t kLse = operand_place(OpKind::Merge, "lse");
  static constexpr std::size_t kPartOut = operand_place(OpKind::Merge, "part_out");
  static constexpr std::size_t kPartLse = operand_place(OpKind::Merge, "part_lse");
};
using FinishOperand = MergeOperand;

/// Places in add.
struct AddOperand {
  static constexpr std::size_t kAcc = operand_place(OpKind::Add, "acc");
  static constexpr std::size_t kPart = operand_place(OpKind::Add, "part");
};

/// Places in copy.
struct CopyOperand {
  static constexpr std::size_t kDst = operand_place(OpKind::Copy, "dst");
  static constexpr std::size_t kSrc = operand_place(OpKind::Copy, "src");
};

/// Places in clear.
struct ClearOperand {
  static constexpr std::size_t kDst = operand_place(OpKind::Clear, "dst");
};

/// Places in delta.
struct DeltaOperand {
  static constexpr std::size_t kDelta = operand_place(OpKind::Delta, "delta");
  static constexpr std::size_t kDOut = operand_place(OpKind::Delta, "dout");
  static constexpr std::size_t kOut = operand_place(OpKind::Delta, "out");
  static constexpr std::size_t kLse = operand_place(OpKind::Delta, "lse");
};

}  // namespace armillary::plan
