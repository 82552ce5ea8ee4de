// training_options.cpp: the table of [training]: key, member, help and legal values. Rules about
// several keys are not here, since a row sees one value.
#include "armillary/train/training_options.h"

#include <limits>

namespace armillary::train {

Section section_of(TrainingOptions& t) {
  const Range size = between(1, kMaxSize);
  return {"training",
          {
              {"dataset_path", &t.dataset_path,
               "folder or file of UTF-8 text, or folder of `armillary data prepare`"},
              {"dataset_extensions", &t.dataset_extensions,
               "files of the folder to read, by comma; empty: all"},
              {"seq_len", &t.seq_len, "tokens per sequence, over all ranks", size},
              {"global_batch_size", &t.global_batch_size, "sequences per step, over all ranks",
               between(1, kMaxBatch)},
              {"local_batch_size", &t.local_batch_size,
               "sequences of a dp rank in one pass; others follow, and add to its gradients",
               between(1, kMaxBatch)},
              {"steps", &t.steps, "optimizer steps", at_least(1)},
              {"max_norm", &t.max_norm, "clips the global gradient norm; inf: no clipping",
               above_zero(std::numeric_limits<double>::infinity())},
              {"dtype", &t.dtype, "of all that is computed and kept; float64: for proofs, slow",
               Names{"float32", "float64"}},
              {"mixed_precision_param", &t.mixed_precision_param,
               "dtype of products, activations, gathered parameters; float64 if dtype is",
               Names{"float32", "bfloat16", "float64"}},
              {"mixed_precision_reduce", &t.mixed_precision_reduce,
               "dtype in which gradients travel over dp and cp; float32: those of dtype",
               Names{"float32", "bfloat16"}},
              {"loss_chunk_tokens", &t.loss_chunk_tokens,
               "tokens of a rank whose logits exist at once", size},
              {"seed", &t.seed, "of initial weights and order of data", at_least(0)},
              {"check_replicas", &t.check_replicas,
               "steps between comparisons of what ranks hold alike; 0: none", at_least(0)},
              {"validation_path", &t.validation_path,
               "data for validation, as dataset_path; empty: the validation part of that"},
              {"validation_interval", &t.validation_interval,
               "steps between validation losses; the last step has one too; 0: none", at_least(0)},
              {"validation_sequences", &t.validation_sequences,
               "sequences of a validation loss; 0: those of an epoch", at_least(0)},
              {"spike_guard", &t.spike_guard,
               "end of a step that spikes or is not finite; none: the latter ends the run",
               Names{"none", "stop", "rollback"}},
              {"spike_loss_factor", &t.spike_loss_factor,
               "a spike is a loss above so many medians; inf: none is", above_one()},
              {"spike_norm_factor", &t.spike_norm_factor,
               "or a gradient norm above so many medians", above_one()},
              {"spike_window", &t.spike_window,
               "steps of the median; as many go before the first that is judged",
               between(1, kMostSpikeWindow)},
              {"spike_skip", &t.spike_skip,
               "batches left out after a rollback: that of the spike, or all it goes back",
               Names{"none", "batch", "since_checkpoint"}},
              {"spike_rollbacks", &t.spike_rollbacks, "rollbacks of a run; one more ends it",
               at_least(0)},
          }};
}

}  // namespace armillary::train
