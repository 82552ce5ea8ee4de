// Kernels of the set "portable": vectors of the compiler, on any CPU.
#define ARMILLARY_ISA portable
#define ARMILLARY_ISA_NAME "portable"
#include "armillary/kernel/cpu/make_isa_kernels-inl.h"
