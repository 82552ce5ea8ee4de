// Kernels of the set "emulated": the code of avx512_bf16 over portable vectors, for tests on any
// CPU.
#define ARMILLARY_ISA emulated
#define ARMILLARY_ISA_NAME "emulated"
#define ARMILLARY_EMULATED 1
#include "armillary/kernel/cpu/make_isa_kernels-inl.h"
