// strategies.h: the part of a test that runs in processes which the test itself starts.
#pragma once

namespace armillary {

/// One rank under mpirun: every strategy, forward and backward, must give the bits that it gives on
/// threads. Prints how many cases there were; returns the exit code of the process.
int run_every_strategy();

}  // namespace armillary
