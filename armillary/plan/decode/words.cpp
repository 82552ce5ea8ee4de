// words.cpp: the tables of a decode step. Rows stand in the order of the enums.
#include "armillary/plan/decode/words.h"

#include <array>

namespace armillary::plan::decode {
namespace {

constexpr std::array<Operand, 1> kAttendOperands{
    {{.name = "part", .access = Access::Write, .tensor = DecodeTensor::Part}}};
constexpr std::array<Operand, 2> kMergeOperands{
    {{.name = "sum", .access = Access::Update, .tensor = DecodeTensor::Sum},
     {.name = "part", .tensor = DecodeTensor::Part}}};

constexpr std::array kDecodeKinds{kSendWord, kRecvWord,
                                  kind_word({.name = "attend", .operands = kAttendOperands}),
                                  kind_word({.name = "merge",
                                             .operands = kMergeOperands,
                                             .form = "merge(% &)!",
                                             .begins = 1U << kSumSide})};

constexpr std::array<TensorWord, 2> kDecodeTensors{
    {{.name = "part", .side = kPartSide}, {.name = "sum", .side = kSumSide}}};
constexpr std::array<SideWord, 2> kDecodeSides{
    {{.name = "part", .plural = "parts"}, {.name = "sum", .plural = "sums"}}};
constexpr std::array<std::string_view, 1> kDecodePasses{"decode"};

constexpr Vocabulary kDecodeWords{.name = "decode",
                                  .kinds = kDecodeKinds,
                                  .tensors = kDecodeTensors,
                                  .sides = kDecodeSides,
                                  .passes = kDecodePasses};

}  // namespace

const Vocabulary& decode_words() {
  return kDecodeWords;
}

}  // namespace armillary::plan::decode
