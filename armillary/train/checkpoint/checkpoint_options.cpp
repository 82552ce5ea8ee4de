// checkpoint_options.cpp: the table of [checkpoint]: key, member, help and legal values.
#include "armillary/train/checkpoint/checkpoint_options.h"

namespace armillary::train {

Section section_of(CheckpointOptions& c) {
  return {"checkpoint",
          {
              {"enable", &c.enable,
               "save every `interval` steps, at the end, and when the run is told to stop"},
              {"folder", &c.folder, "folder for checkpoints, in job.dump_folder"},
              {"interval", &c.interval, "steps between checkpoints", at_least(1)},
              {"keep_latest_k", &c.keep_latest_k, "newest checkpoints that are kept; 0: all",
               at_least(0)},
          }};
}

}  // namespace armillary::train
