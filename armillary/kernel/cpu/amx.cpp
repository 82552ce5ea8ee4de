#define ARMILLARY_ISA amx
#define ARMILLARY_ISA_NAME "amx"
#define ARMILLARY_AMX 1
#include "armillary/kernel/cpu/tiles_of_isa.h"
