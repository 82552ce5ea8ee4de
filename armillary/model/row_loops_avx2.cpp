// row_loops_avx2.cpp: the loops of row_loops-inl.h with AVX2. They are a source of their own
// because flags hold for whole sources, and a machine without AVX2 must run none of them.
#define ARMILLARY_ISA avx2
#include "armillary/model/row_loops-inl.h"
