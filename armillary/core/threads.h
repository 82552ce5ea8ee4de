// threads.h: the number of threads that one process may be asked for.
#pragma once

namespace armillary {

/// Largest number of ranks, and largest number of threads of a rank. Threads of one process are not
/// a cluster: more threads than cores only share them, and each has a stack of its own.
inline constexpr int kMaxThreads = 1024;

}  // namespace armillary
