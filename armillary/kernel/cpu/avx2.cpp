// Kernels of the set "avx2": AVX2, FMA and F16C. Compiled with flags of its own.
#define ARMILLARY_ISA avx2
#define ARMILLARY_ISA_NAME "avx2"
#include "armillary/kernel/cpu/make_isa_kernels-inl.h"
