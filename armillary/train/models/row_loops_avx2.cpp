#define ARMILLARY_ISA avx2
#include "armillary/train/models/row_loops-inl.h"
