// Kernels of the set "avx512": AVX-512F. Compiled with flags of its own.
#define ARMILLARY_ISA avx512
#define ARMILLARY_ISA_NAME "avx512"
#include "armillary/kernel/cpu/make_isa_kernels-inl.h"
