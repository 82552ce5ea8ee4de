#define ARMILLARY_ISA avx512
#define ARMILLARY_ISA_NAME "avx512"
#include "armillary/kernel/cpu/tiles_of_isa.h"
