// Kernels of the set "avx512_bf16": AVX-512 and its bf16 dot product. Compiled with flags of its
// own.
#define ARMILLARY_ISA avx512_bf16
#define ARMILLARY_ISA_NAME "avx512_bf16"
#include "armillary/kernel/cpu/make_isa_kernels-inl.h"
