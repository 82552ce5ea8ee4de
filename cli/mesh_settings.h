// mesh_settings.h: a mesh that `armillary advise` proposes, as `armillary train --set` takes it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "armillary/predict/sim/cluster.h"
#include "armillary/predict/tune/advise.h"

namespace armillary::cli {

/// "parallelism.zero=1" and the others, a key each.
std::vector<std::string> mesh_settings(const tune::Advised& advised);

/// The fastest mesh that `armillary train` can run: without pipeline parallelism, which is not
/// built yet. Null: none fits.
const tune::Advised* fastest_to_train(const tune::Advice& advice);

/// The cluster of `auto:CLUSTER`. @throws InvalidArgument for another text, or as
/// sim::load_cluster.
sim::Cluster cluster_of_mesh(std::string_view text);

/// The mesh, with the sequences of a pass, that trains fastest. Its replicas share the sequences of
/// the step in equal passes. @throws InvalidArgument as tune::advise, or if no mesh that trains
/// fits.
tune::Advised choose_mesh(const tune::AdviceQuestion& question);

}  // namespace armillary::cli
