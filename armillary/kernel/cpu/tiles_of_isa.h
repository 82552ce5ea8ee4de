// tiles_of_isa.h: the whole of one instruction set, for its one source.
#pragma once

#include "armillary/kernel/cpu/amx_backward.h"
#include "armillary/kernel/cpu/amx_write.h"
#include "armillary/kernel/cpu/backward_pairs.h"
#include "armillary/kernel/cpu/backward_tile.h"
#include "armillary/kernel/cpu/forward_pairs.h"
#include "armillary/kernel/cpu/forward_tile.h"
#include "armillary/kernel/cpu/pack.h"
#include "armillary/kernel/cpu/row_ops.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

inline void exp_all(const float* x, float* y, int count) {
  for (int i = 0; i < count; i += kWidth) {
    Float values[1] = {load(x + i)};
    exp_any(values);
    store(y + i, values[0]);
  }
}

inline void tanh_all(const float* x, float* y, int count) {
  for (int i = 0; i < count; i += kWidth) store(y + i, tanh(load(x + i)));
}

inline void exp2_to_round_all(const float* x, float* y, int count) {
  for (int i = 0; i < count; i += kWidth) {
    Float values[1] = {load(x + i)};
    exp2_to_round(values);
    store(y + i, values[0]);
  }
}

constexpr Units kUnits{
    .rows = kRows, .keys = kPanel, .width = 1, .words = kPanel, .columns = kPanel};
constexpr PassSizes kForwardSizes{
    .q_rows = kForwardQ, .k_rows = kForwardK, .scores = kRows * kForwardLd};
constexpr PassSizes kBackwardSizes{.q_rows = kBackwardQ,
                                   .k_rows = kBackwardK,
                                   .scores = kBackwardQ * kBackwardLd,
                                   .dscores = kBackwardQ * kBackwardLd};

#if defined(ARMILLARY_AMX)

/// Tiles of bf16, or of floats in parts.
template <int kParts>
constexpr Products amx_products() {
  return {
      .terms = 2,
      .parts = kParts,
      .units = {.rows = kPair, .keys = kPair, .width = kPair, .words = kSide, .columns = kPair},
      .forward_sizes = {.q_rows = kAmxForwardQ,
                        .k_rows = kAmxForwardK,
                        .scores = ForwardScratch<kParts>::kFloats},
      .backward_sizes = {.q_rows = kAmxBackwardQ,
                         .k_rows = amx_backward_k(kParts),
                         .scores = BackwardScratch<kParts>::kFloats,
                         .dscores = QuerySums::kFloats},
      .heads_floats = std::int64_t{1} << 19,  // the second cache
      .log_unit = log_unit(kParts),
      .pack_queries = pack_tile_words<kParts>,
      .pack_keys = pack_tile_rows<kParts>,
      .pack_values = pack_tile_columns<kParts>,
      .pack_query_values = pack_tile_row_pairs<kParts>,
      .pack_sums = pack_tile_sums,
      .forward = forward_amx<kParts>,
      .backward = backward_amx<kParts>,
      .backward_dq = backward_amx_dq,
      .scale_row = scale_amx_row,
      .write = {write_amx_of<kParts, float>, write_amx_words<kParts>, write_amx_of<kParts, Fp16>},
      .write_sums = {write_key_sums<float>, write_key_sums<Bf16>, write_key_sums<Fp16>},
      .add_sums = add_key_sums};
}

#endif

extern const Tiles kTiles;
const Tiles kTiles = {
    .name = ARMILLARY_ISA_NAME,
#if defined(ARMILLARY_AMX)
    .floats = amx_products<kFloatParts>(),
    .pairs = amx_products<1>(),
#else
    .floats = {.terms = Product::kTerms,
               .units = kUnits,
               .forward_sizes = kForwardSizes,
               .backward_sizes = kBackwardSizes,
               .pack_queries = pack_columns,
               .pack_keys = pack_transposed,
               .pack_values = pack_columns,
               .pack_query_values = pack_columns,
               .pack_sums = pack_columns,
               .forward = forward,
               .backward = backward,
               .backward_dq = backward_dq<Product>,
               .scale_row = scale_row,
               .write = {write_of<float>, write_of<Bf16>, write_of<Fp16>},
               .write_sums = {write_columns_of<float>, write_columns_of<Bf16>,
                              write_columns_of<Fp16>},
               .add_sums = add_columns},
#if defined(ARMILLARY_PAIRS)
    .pairs = {.terms = PairProduct::kTerms,
              .needs_words = true,
              .units = kUnits,
              .forward_sizes = kForwardSizes,
              .backward_sizes = kBackwardSizes,
              .pack_queries = pack_query_pairs,
              .pack_keys = pack_key_pairs,
              .pack_values = pack_value_pairs,
              .pack_query_values = pack_value_pairs,
              .pack_sums = pack_columns,
              .forward = forward_pairs,
              .backward = backward_pairs,
              .backward_dq = backward_dq<PairProduct>,
              .scale_row = scale_row,
              .write = {write_of<float>, write_of<Bf16>, write_of<Fp16>},
              .write_sums = {write_columns_of<float>, write_columns_of<Bf16>,
                             write_columns_of<Fp16>},
              .add_sums = add_columns},
#endif
#endif
    .write_rows = {write_rows_of<float>, write_rows_of<Bf16>, write_rows_of<Fp16>},
    .merge = {merge_of<float>, merge_of<Bf16>, merge_of<Fp16>},
    .add = {add_of<float>, add_of<Bf16>, add_of<Fp16>},
    .delta = {delta_of<float>, delta_of<Bf16>, delta_of<Fp16>},
    .exp = exp_all,
    .tanh = tanh_all,
#if defined(ARMILLARY_PAIRS)
    .exp2_to_round = exp2_to_round_all
#endif
};

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
