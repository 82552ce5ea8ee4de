// run_options.cpp: the tables of [job], [comm] and [metrics]; rows are in the order in which a
// recipe is printed.
#include "armillary/train/run_options.h"

namespace armillary::train {

Section section_of(JobOptions& job) {
  return {"job",
          {{"dump_folder", &job.dump_folder, "folder for metrics.jsonl and recipe.toml"},
           {"description", &job.description, "a line for the reader"}}};
}

/// 1e9 s, some thirty years, is as good as no deadline and still a time that a clock can add.
Section section_of(CommOptions& comm) {
  return {"comm",
          {{"train_timeout_seconds", &comm.train_timeout_seconds,
            "longest wait of a rank for another", above_zero(1e9)}}};
}

Section section_of(MetricsOptions& metrics) {
  return {"metrics",
          {{"log_freq", &metrics.log_freq,
            "steps per line of metrics; the first and the last step have one too", at_least(1)},
           {"enable_tensorboard", &metrics.enable_tensorboard,
            "event files of TensorBoard, with the numbers of metrics.jsonl"},
           {"save_tb_folder", &metrics.save_tb_folder, "folder for them, in job.dump_folder"},
           {"cluster", &metrics.cluster,
            "PRESET or .toml file whose simulated step run.html shows beside the measured ones"}}};
}

}  // namespace armillary::train
