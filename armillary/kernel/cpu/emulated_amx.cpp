#define ARMILLARY_ISA emulated_amx
#define ARMILLARY_ISA_NAME "emulated_amx"
#define ARMILLARY_EMULATED 1
#define ARMILLARY_AMX 1
#include "armillary/kernel/cpu/tiles_of_isa.h"
