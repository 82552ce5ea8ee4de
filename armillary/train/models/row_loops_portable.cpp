#define ARMILLARY_ISA portable
#include "armillary/train/models/row_loops-inl.h"
