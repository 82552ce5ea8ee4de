// threads.h: how many threads one process may be asked for.
#pragma once

namespace armillary {

/// Of ranks, or of one rank: threads of one process are not a cluster, and stacks take its memory.
inline constexpr int kMaxThreads = 1024;

}  // namespace armillary
