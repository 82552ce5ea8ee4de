#define ARMILLARY_ISA avx512_bf16
#define ARMILLARY_ISA_NAME "avx512_bf16"
#include "armillary/kernel/cpu/tiles_of_isa.h"
