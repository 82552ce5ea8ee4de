// row_loops_portable.cpp: the same loops for every machine, with no flag of an instruction set.
// They give the bits of the AVX2 ones.
#define ARMILLARY_ISA portable
#include "armillary/model/row_loops-inl.h"
