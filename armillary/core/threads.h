// threads.h: how many threads one process may be asked for.
#pragma once

namespace armillary {

/// Most ranks, and most threads of a rank. Threads of one process are not a cluster: more than
/// cores only take turns, and each has a stack.
inline constexpr int kMaxThreads = 1024;

}  // namespace armillary
