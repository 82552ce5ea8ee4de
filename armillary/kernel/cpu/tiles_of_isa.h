// tiles_of_isa.h: the whole of one instruction set, for its one source.
#pragma once

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

extern const Tiles kTiles;
const Tiles kTiles = {
    .name = ARMILLARY_ISA_NAME,
    .panel = kPanel,
    .row_group = kRows,
    .forward_q_rows = kForwardQ,
    .forward_k_rows = kForwardK,
    .forward_ld = kForwardLd,
    .backward_q_rows = kBackwardQ,
    .backward_k_rows = kBackwardK,
    .backward_ld = kBackwardLd,
    .floats = {.terms = Product::kTerms,
               .pack_queries = pack_columns,
               .pack_keys = pack_transposed,
               .pack_values = pack_columns,
               .forward = forward,
               .backward = backward,
               .backward_dq = backward_dq<Product>},
#if defined(ARMILLARY_PAIRS)
    .pairs = {.terms = PairProduct::kTerms,
              .pack_queries = pack_query_pairs,
              .pack_keys = pack_key_pairs,
              .pack_values = pack_value_pairs,
              .forward = forward_pairs,
              .backward = backward_pairs,
              .backward_dq = backward_dq<PairProduct>},
#endif
    .write = {write_of<float>, write_of<Bf16>, write_of<Fp16>},
    .write_columns = {write_columns_of<float>, write_columns_of<Bf16>, write_columns_of<Fp16>},
    .write_rows = {write_rows_of<float>, write_rows_of<Bf16>, write_rows_of<Fp16>},
    .add_columns = add_columns,
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
