// Kernels of the set "amx": tiles of bf16, AVX-512 vectors. Compiled with flags of its own.
#define ARMILLARY_ISA amx
#define ARMILLARY_ISA_NAME "amx"
#define ARMILLARY_AMX 1
#include "armillary/kernel/cpu/make_isa_kernels-inl.h"
