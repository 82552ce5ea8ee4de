#define ARMILLARY_ISA emulated
#define ARMILLARY_ISA_NAME "emulated"
#define ARMILLARY_EMULATED 1
#include "armillary/kernel/cpu/tiles_of_isa.h"
