// The tables of a step. Rows stand in the order of the enums; operands of a kind in the order of
// the structs of words.h.
#include "armillary/plan/step/words.h"

#include <algorithm>
#include <array>
#include <vector>

#include "armillary/core/checked.h"

namespace armillary::plan::step {
namespace {

using enum Access;

constexpr std::array<Operand, 2> kGatherOperands{
    {{"all", Write, StepTensor::Weight}, {"mine", Read, StepTensor::Weight}}};
constexpr std::array<Operand, 1> kGatherInPlaceOperands{{{"all", Update}}};
constexpr std::array<Operand, 3> kForwardOperands{{{"weight", Read, StepTensor::Weight},
                                                   {"x", Read, StepTensor::X},
                                                   {"y", Update, StepTensor::X}}};
constexpr std::array<Operand, 3> kLossOperands{{{"y", Read, StepTensor::X},
                                                {"dy", Write, StepTensor::Dx},
                                                {"loss", Update, StepTensor::Loss}}};
constexpr std::array<Operand, 5> kBackwardOperands{{{"weight", Read, StepTensor::Weight},
                                                    {"x", Read, StepTensor::X},
                                                    {"dy", Read, StepTensor::Dx},
                                                    {"dx", Update, StepTensor::Dx},
                                                    {"grad", Update, StepTensor::Grad}}};
constexpr std::array<Operand, 1> kReleaseOperands{{{"dst", Write}}};
constexpr std::array<Operand, 1> kAllReduceOperands{{{"sum", Update}}};
constexpr std::array<Operand, 2> kReduceScatterOperands{
    {{"mine", Update, StepTensor::Grad}, {"all", Read, StepTensor::Grad}}};
constexpr std::array<Operand, 1> kReduceInPlaceOperands{{{"all", Update, StepTensor::Grad}}};
constexpr std::array<Operand, 2> kNormOperands{
    {{"grad", Read, StepTensor::Grad}, {"norm", Update, StepTensor::Norm}}};
constexpr std::array<Operand, 4> kUpdateOperands{{{"weight", Update, StepTensor::Weight},
                                                  {"state", Update},
                                                  {"grad", Read, StepTensor::Grad},
                                                  {"norm", Read, StepTensor::Norm}}};
constexpr std::array<Operand, 2> kForwardPlainOperands{
    {{"x", Read, StepTensor::X}, {"y", Write, StepTensor::X}}};
constexpr std::array<Operand, 3> kBackwardPlainOperands{
    {{"x", Read, StepTensor::X}, {"dy", Read, StepTensor::Dx}, {"dx", Write, StepTensor::Dx}}};

constexpr std::array<Operand, 2> kMoveOperands{{{"to", Write}, {"from", Read}}};

constexpr unsigned kOfUnits = 1U << kUnitSide;
constexpr unsigned kOfBorders = 1U << kBorderSide;

constexpr std::array kStepKinds{
    kSendWord,
    kRecvWord,
    kind_word({.name = "gather",
               .operands = kGatherOperands,
               .form = "gather(% over @)",
               .joint = true,
               .reshapes = true}),
    kind_word({.name = "gather_in_place",
               .operands = kGatherInPlaceOperands,
               .form = "gather_in_place(% over @)",
               .joint = true}),
    kind_word({.name = "forward",
               .operands = kForwardOperands,
               .form = "forward(% &)",
               .begins = kOfBorders,
               .reshapes = true}),
    kind_word({.name = "loss", .operands = kLossOperands, .begins = kOfBorders, .reshapes = true}),
    kind_word({.name = "backward",
               .operands = kBackwardOperands,
               .form = "backward(% &)",
               .begins = kOfUnits | kOfBorders,
               .reshapes = true}),
    kind_word({.name = "release", .operands = kReleaseOperands}),
    kind_word({.name = "all_reduce",
               .operands = kAllReduceOperands,
               .form = "all_reduce(% over @)",
               .joint = true}),
    kind_word({.name = "reduce_scatter",
               .operands = kReduceScatterOperands,
               .form = "reduce_scatter(% over @)",
               .begins = kOfUnits,
               .joint = true,
               .reshapes = true}),
    kind_word({.name = "reduce_in_place",
               .operands = kReduceInPlaceOperands,
               .form = "reduce_in_place(% over @)",
               .joint = true}),
    kind_word({.name = "norm", .operands = kNormOperands, .begins = kOfBorders, .reshapes = true}),
    kind_word({.name = "update", .operands = kUpdateOperands}),
    kind_word({.name = "forward_plain", .operands = kForwardPlainOperands, .reshapes = true}),
    kind_word({.name = "backward_plain", .operands = kBackwardPlainOperands, .reshapes = true}),
    kind_word({.name = "move", .operands = kMoveOperands, .beside = true})};

constexpr std::array<TensorWord, 8> kStepTensors{{{.name = "weight", .side = kUnitSide},
                                                  {.name = "state", .side = kUnitSide},
                                                  {.name = "grad", .side = kUnitSide},
                                                  {.name = "x", .side = kBorderSide},
                                                  {.name = "dx", .side = kBorderSide},
                                                  {.name = "loss", .side = kBorderSide},
                                                  {.name = "norm", .side = kBorderSide},
                                                  {.name = "buffer", .side = kUnitSide}}};
constexpr std::array<SideWord, 2> kStepSides{
    {{.name = "unit", .plural = "units"}, {.name = "border", .plural = "borders"}}};
constexpr std::array<std::string_view, 1> kStepPasses{"step"};

static_assert(kStepKinds.size() == static_cast<std::size_t>(StepOp::Move) + 1);
static_assert(kStepKinds.size() <= kMostKinds);
constexpr Vocabulary kStepWords{.name = "step",
                                .kinds = kStepKinds,
                                .tensors = kStepTensors,
                                .sides = kStepSides,
                                .passes = kStepPasses};

/// The most values of a shard of a part.
std::int64_t largest_shard(const StepTables& tables, const StepPart& part) {
  std::int64_t most = 0;
  for (const UseShards& of_rank : tables.shape().units[part.unit].shards) {
    for (const std::int64_t count : of_rank[static_cast<std::size_t>(part.use)]) {
      most = std::max(most, count);
    }
  }
  if (most > 0) return most;
  const int groups = part.use == TpUse::Experts ? tables.shape().ep
                                                : tables.shape().mesh.tp / tables.holders(part.use);
  return ceil_div(ceil_div(part.values, groups), tables.shards(part.unit));
}

}  // namespace

const Vocabulary& step_words() {
  return kStepWords;
}

Measures step_measures(const StepTables& tables) {
  std::vector<std::int64_t> shards;  // By part.
  for (const StepPart& part : tables.parts()) {
    shards.push_back(largest_shard(tables, part));
  }
  const std::vector<std::int64_t> borders(static_cast<std::size_t>(tables.units()) + 1, 0);
  const int microbatches = tables.shape().microbatches;
  const TensorMeasure values{.heads = tables.most_shards()};
  TensorMeasure moments = values;
  moments.dim = 2;
  return {
      kStepWords,
      1,
      {values, moments, values, {.heads = microbatches}, {.heads = microbatches}, {}, {}, moments},
      {shards, borders}};
}

}  // namespace armillary::plan::step
