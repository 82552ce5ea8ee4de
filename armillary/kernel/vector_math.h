// vector_math.h: makes ATen's exp, log, sin and similar functions accurate from the first call.
#pragma once

namespace armillary::kernel {

/// Calls each function once, on one thread. Must be called before these functions are used.
///
/// ATen takes them from MKL, which chooses the code for this CPU in the first call of a function
/// and dtype. If several threads make that call, one of them may run code of low accuracy, whose
/// errors exceed every tolerance of this library. Threads: any. Cost: microseconds once, then one
/// atomic load.
void choose_vector_math();

}  // namespace armillary::kernel
