#include "cli/mesh_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/train/parallelism.h"

namespace armillary::cli {

std::vector<std::string> mesh_settings(const tune::Advised& advised) {
  const cost::Parallelism& parallelism = advised.parallelism;
  const auto recompute = static_cast<std::size_t>(parallelism.recompute);
  // A rank alone along cp has the defaults of `train`, which tells what does nothing.
  const train::ParallelismOptions usual;
  const bool is_spread = parallelism.mesh.cp > 1;
  return {
      fmt::format("parallelism.data_parallel_shard_degree={}", parallelism.mesh.dp),
      "parallelism.data_parallel_replicate_degree=1",
      fmt::format("parallelism.context_parallel_degree={}", parallelism.mesh.cp),
      fmt::format("parallelism.tensor_parallel_degree={}", parallelism.mesh.tp),
      fmt::format("parallelism.zero={}", parallelism.zero),
      "parallelism.strategy=" +
          (is_spread ? to_string(advised.attention.strategy) : usual.strategy),
      "parallelism.layout=" + (is_spread ? to_string(advised.attention.layout) : usual.layout),
      fmt::format("activation_checkpoint.mode={}", cost::recompute_names()[recompute]),
      fmt::format("training.local_batch_size={}", parallelism.microbatch),
  };
}

const tune::Advised* fastest_to_train(const tune::Advice& advice) {
  const auto runs = [](const tune::Advised& advised) { return advised.parallelism.mesh.pp == 1; };
  const auto fastest = std::ranges::find_if(advice.meshes, runs);
  return fastest == advice.meshes.end() ? nullptr : &*fastest;
}

sim::Cluster cluster_of_mesh(std::string_view text) {
  constexpr std::string_view kAuto = "auto:";
  if (!text.starts_with(kAuto) || text.size() == kAuto.size()) {
    fail<InvalidArgument>("--mesh: {} given; auto:CLUSTER is required, such as auto:c6",
                          quote(text));
  }
  return sim::load_cluster(std::string(text.substr(kAuto.size())));
}

tune::Advised choose_mesh(const tune::AdviceQuestion& question) {
  const tune::Advice advice = tune::advise(question);
  const tune::Advised* const fastest = fastest_to_train(advice);
  if (fastest == nullptr) {
    fail<InvalidArgument>(
        "--mesh: every mesh that fits on {} has pipeline parallelism, which is not built yet; "
        "the fastest is {}",
        question.cluster.name, to_string(advice.meshes.front()));
  }
  return *fastest;
}

}  // namespace armillary::cli
