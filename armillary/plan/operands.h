// operands.h: the operands of every kind of op, and their places by name.
//
// One table per kind lists the operands in the order of Op::views: the name, the effect of the op,
// and the tile that the operand takes. These tables are the only list of operands. `operands(kind)`
// gives them at run time to printing, JSON and verification. The constants below give places in
// Op::views at compile time; they are looked up by name in the same tables, so a name that a table
// does not have does not compile.
//
//   op.views[FinishOperand::kPartOut]   the view of operand part_out of a finish
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "armillary/core/error.h"
#include "armillary/plan/plan.h"

namespace armillary::plan {

/// The tables, one per kind of op. A row is the name, the access, and for an operand that must be a
/// certain tensor this tensor and whether the tile is partial. Send, recv, add, copy and clear take
/// any tensor. The tables of ops that write results are derived: attend_all has the operands of
/// attend, finish those of merge.
namespace operand_tables {

using enum Access;

/// The table of the op that writes results: the same operands, but each accumulator that is updated
/// becomes a final tile that is written.
template <std::size_t N>
constexpr std::array<Operand, N> with_results(std::array<Operand, N> table) {
  for (Operand& operand : table) {
    if (operand.access != Update) continue;
    operand.access = Write;
    operand.partial = false;
  }
  return table;
}

inline constexpr std::array<Operand, 1> kSend{{{"src", Read}}};
inline constexpr std::array<Operand, 1> kRecv{{{"dst", Write}}};
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
                                                {"part_out", Read, Tensor::Out, true},
                                                {"part_lse", Read, Tensor::Lse, true}}};
inline constexpr std::array<Operand, 2> kAdd{{{"acc", Update}, {"part", Read}}};
inline constexpr std::array<Operand, 2> kCopy{{{"dst", Write}, {"src", Read}}};
inline constexpr std::array<Operand, 1> kClear{{{"dst", Write}}};
inline constexpr std::array<Operand, 4> kDelta{{{"delta", Write, Tensor::Delta},
                                                {"dout", Read, Tensor::DOut},
                                                {"out", Read, Tensor::Out},
                                                {"lse", Read, Tensor::Lse}}};
inline constexpr auto kFinish = with_results(kMerge);
inline constexpr auto kAttendAll = with_results(kAttend);
inline constexpr auto kAttendGradAll = with_results(kAttendGrad);

}  // namespace operand_tables

/// The result of operands(kind) as a constant expression.
constexpr std::span<const Operand> operand_table(OpKind kind) {
  switch (kind) {
    case OpKind::Send:
      return operand_tables::kSend;
    case OpKind::Recv:
      return operand_tables::kRecv;
    case OpKind::Attend:
      return operand_tables::kAttend;
    case OpKind::AttendGrad:
      return operand_tables::kAttendGrad;
    case OpKind::Merge:
      return operand_tables::kMerge;
    case OpKind::Add:
      return operand_tables::kAdd;
    case OpKind::Copy:
      return operand_tables::kCopy;
    case OpKind::Clear:
      return operand_tables::kClear;
    case OpKind::Delta:
      return operand_tables::kDelta;
    case OpKind::Finish:
      return operand_tables::kFinish;
    case OpKind::AttendAll:
      return operand_tables::kAttendAll;
    case OpKind::AttendGradAll:
      return operand_tables::kAttendGradAll;
  }
  fail<InternalError>("plan: op kind {}", static_cast<int>(kind));
}

/// The operands that each kind of op writes or updates: a bit for each.
inline constexpr auto kWritten = [] {
  constexpr std::size_t kOpKinds = static_cast<std::size_t>(OpKind::AttendGradAll) + 1;
  std::array<unsigned, kOpKinds> written{};
  for (std::size_t kind = 0; kind < kOpKinds; ++kind) {
    const auto table = operand_table(static_cast<OpKind>(kind));
    for (std::size_t v = 0; v < table.size(); ++v) {
      if (table[v].access != Access::Read) written[kind] |= 1U << v;
    }
  }
  return written;
}();

/// True if an op writes or updates its view `v`: access() is not Read.
inline bool writes(const Op& op, std::size_t v) {
  return (kWritten[static_cast<std::size_t>(op.kind)] >> (op.is_comm() ? 0 : v) & 1) != 0;
}

/// The place of the operand of that name in Op::views, at compile time only. A name that the kind
/// does not have is a compile error.
consteval std::size_t operand_place(OpKind kind, std::string_view name) {
  const std::span<const Operand> table = operand_table(kind);
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
