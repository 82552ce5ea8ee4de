// strategies.h: the parts of tests that run in processes which the tests themselves start.
#pragma once

#include <string>

namespace armillary {

/// One rank under mpirun: every strategy, forward and backward, must give the bits that it gives on
/// threads. Prints how many cases there were; returns the exit code of the process.
int run_every_strategy();

/// One rank under mpirun with a cache of its own, of which that of rank 0 alone has a measured
/// answer: it must take the strategy of rank 0. Returns the exit code of the process.
int run_choice();

/// One rank of a 2 x 2 mesh, under mpirun or at the place that run_as_ranks() gave it: attention on
/// one axis beside sums over the other. Returns the exit code of the process.
int run_mesh(const std::string& c10d_place);

}  // namespace armillary
