#define ARMILLARY_ISA avx2
#define ARMILLARY_ISA_NAME "avx2"
#include "armillary/kernel/cpu/tiles_of_isa.h"
