#define ARMILLARY_ISA portable
#define ARMILLARY_ISA_NAME "portable"
#include "armillary/kernel/cpu/tiles_of_isa.h"
