// parallel_for.h: a loop over pieces of work that do not depend on each other, on all cores.
#pragma once

#include <functional>

namespace armillary {

/// Calls `work` once for every i in [0, count) and returns when all calls have returned. Uses at
/// most one thread per core and one for each `least_per_thread` calls, the calling one included:
/// starting a thread takes some 20 us. `work` must write only data of its own i.
/// @throws the exception of the lowest i whose call threw, for any number of threads.
void parallel_for(int count, const std::function<void(int i)>& work, int least_per_thread = 1);

}  // namespace armillary
