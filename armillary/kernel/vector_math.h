// vector_math.h: makes ATen's exp, log, sin and their like exact from the first call.
#pragma once

namespace armillary::kernel {

/// Calls each of them once, on one thread. ATen takes them from MKL, which chooses the code for
/// this CPU in the first call of a function and dtype. If that call is made by several threads, one
/// of them may run code of low accuracy, wrong by 1e-10 in fp64 and 1e-4 in fp32 (PyTorch issue
/// 188792). Whoever uses these functions calls this before. Threads: any. Cost: microseconds once,
/// then one atomic load.
void choose_vector_math();

}  // namespace armillary::kernel
