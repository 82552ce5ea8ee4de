// make_isa_kernels-inl.h: kIsaKernels, the table of all functions of one instruction set, for the
// one source that includes this.
//
// The source defines ARMILLARY_ISA, the namespace of the set, ARMILLARY_ISA_NAME, and, for some
// sets, ARMILLARY_AMX or ARMILLARY_EMULATED. Sets with AMX multiply every dtype with tiles; the
// others multiply floats with vectors, and bf16 with its dot product where the set has one.
#pragma once

#include "armillary/kernel/cpu/amx_backward-inl.h"
#include "armillary/kernel/cpu/amx_forward-inl.h"
#include "armillary/kernel/cpu/backward_bf16_dot-inl.h"
#include "armillary/kernel/cpu/backward_tile-inl.h"
#include "armillary/kernel/cpu/forward_bf16_dot-inl.h"
#include "armillary/kernel/cpu/forward_tile-inl.h"
#include "armillary/kernel/cpu/pack-inl.h"
#include "armillary/kernel/cpu/row_ops-inl.h"

namespace armillary::kernel::cpu::ARMILLARY_ISA {

/// Vector functions over arrays, for tests. `count` is a multiple of kWidth.
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

/// exp2_to_round() exists in all sets; the table has it where weights are rounded to bf16.
inline void exp2_to_round_all(const float* x, float* y, int count) {
  for (int i = 0; i < count; i += kWidth) {
    Float values[1] = {load(x + i)};
    exp2_to_round(values);
    store(y + i, values[0]);
  }
}

/// Padding and sizes of the vector kernels, for both kinds of words.
constexpr Units kUnits{
    .rows = kRows, .keys = kPanel, .width = 1, .words = kPanel, .columns = kPanel};
constexpr PassSizes kForwardSizes{
    .q_rows = kForwardQ, .k_rows = kForwardK, .scores = kRows * kForwardLd};
constexpr PassSizes kBackwardSizes{.q_rows = kBackwardQ,
                                   .k_rows = kBackwardK,
                                   .scores = kBackwardQ * kBackwardLd,
                                   .dscores = kBackwardQ * kBackwardLd};

#if defined(ARMILLARY_AMX)

/// Tiles of bf16 (1 part), or of floats in 3 parts.
template <int kParts>
constexpr GemmOps amx_gemm_ops() {
  return {
      .terms = 2,
      .parts = kParts,
      .units = {.rows = kDoubleSide,
                .keys = kDoubleSide,
                .width = kDoubleSide,
                .words = kSide,
                .columns = kDoubleSide},
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
      .pack_query_values = pack_tile_row_words<kParts>,
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

// Declared first: a const object would have internal linkage.
extern const IsaKernels kIsaKernels;
const IsaKernels kIsaKernels = {
    .name = ARMILLARY_ISA_NAME,
#if defined(__AVX2__)
    .avx2 = true,
#endif
#if defined(ARMILLARY_AMX)
    .floats = amx_gemm_ops<kFloatParts>(),
    .bf16_dot = amx_gemm_ops<1>(),
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
#if defined(ARMILLARY_BF16_DOT)
    .bf16_dot = {.terms = Bf16Product::kTerms,
                 .needs_words = true,
                 .units = kUnits,
                 .forward_sizes = kForwardSizes,
                 .backward_sizes = kBackwardSizes,
                 .pack_queries = pack_query_words,
                 .pack_keys = pack_key_words,
                 .pack_values = pack_value_words,
                 .pack_query_values = pack_value_words,
                 .pack_sums = pack_columns,
                 .forward = forward_bf16_dot,
                 .backward = backward_bf16_dot,
                 .backward_dq = backward_dq<Bf16Product>,
                 .scale_row = scale_row,
                 .write = {write_of<float>, write_of<Bf16>, write_of<Fp16>},
                 .write_sums = {write_columns_of<float>, write_columns_of<Bf16>,
                                write_columns_of<Fp16>},
                 .add_sums = add_columns},
#endif
#endif
    // Row functions are those of vectors in every set.
    .write_rows = {write_rows_of<float>, write_rows_of<Bf16>, write_rows_of<Fp16>},
    .merge = {merge_of<float>, merge_of<Bf16>, merge_of<Fp16>},
    .add = {add_of<float>, add_of<Bf16>, add_of<Fp16>},
    .delta = {delta_of<float>, delta_of<Bf16>, delta_of<Fp16>},
    .exp = exp_all,
    .tanh = tanh_all,
#if defined(ARMILLARY_BF16_DOT)
    .exp2_to_round = exp2_to_round_all
#endif
};

}  // namespace armillary::kernel::cpu::ARMILLARY_ISA
