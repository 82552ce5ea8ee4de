// Kernels of the set "emulated_amx": the code of amx with tile registers in memory, for tests on
// any CPU.
#define ARMILLARY_ISA emulated_amx
#define ARMILLARY_ISA_NAME "emulated_amx"
#define ARMILLARY_EMULATED 1
#define ARMILLARY_AMX 1
#include "armillary/kernel/cpu/make_isa_kernels-inl.h"
