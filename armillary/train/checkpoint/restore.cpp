// Restoring, in the order in which errors help most: is it a checkpoint of this recipe and data,
// are its bytes those that were written, and last, are the tensors those of the model.
#include "armillary/train/checkpoint/restore.h"

#include <fmt/format.h>

#include <cstring>

#include "armillary/comm/together.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/folder.h"
#include "armillary/train/checkpoint/resumable.h"

namespace armillary::train {
namespace {

/// The data must go on where it stopped.
void check_data(const Progress& progress, const Data& data) {
  if (data.vocab_size() != progress.vocab_size) {
    fail<InvalidArgument>(
        "checkpoint: data with a vocabulary of {} given; {}, that of the checkpoint, is required",
        data.vocab_size(), progress.vocab_size);
  }
  const std::int64_t last = progress.sequences_read - 1;
  const std::string hash = hash_of(data.at(last));
  if (hash != progress.last_sequence) {
    fail<InvalidArgument>(
        "checkpoint: sequence {} of the data has hash {}; {} is required: training.dataset_path "
        "must name the text with which the run began",
        last, hash, progress.last_sequence);
  }
}

/// A run may be made longer, not shorter than it is.
void check_steps(const Progress& progress, const Recipe& recipe) {
  if (recipe.training.steps < progress.step) {
    fail<InvalidArgument>(
        "checkpoint: training.steps = {} given; at least {}, the steps of the checkpoint, is "
        "required",
        recipe.training.steps, progress.step);
  }
}

}  // namespace

io::TensorInfo StateTensor::info() const {
  return {.name = name, .dtype = io::TensorDtype::F32, .shape = tensor.sizes().vec()};
}

io::TensorBytes StateTensor::bytes() const {
  return {info(), {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

std::vector<StateTensor> state_of(const Model& model, const ParameterStore& store) {
  const std::vector<std::string> names = model.parameter_names();
  if (names.size() != store.parameters().size()) {
    fail<InvalidArgument>("checkpoint: a model with {} of {}; one each is required",
                          count_of(names.size(), "name"),
                          count_of(store.parameters().size(), "parameter"));
  }
  std::vector<StateTensor> state;
  // One name for each parameter and kind: "parameters/NAME", "means/NAME", "squares/NAME".
  const auto add = [&](const char* kind, const std::vector<at::Tensor>& tensors) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      state.push_back({fmt::format("{}/{}", kind, names[i]), tensors[i]});
    }
  };
  add("parameters", store.parameters());
  add("means", store.means());
  add("squares", store.squares());
  return state;
}

std::string choose_checkpoint(comm::Communicator& comm, const Recipe& recipe, bool resume,
                              const std::function<void(const std::string&)>& on_notice) {
  const std::string folder = checkpoint_folder(recipe);
  std::string path;
  comm::run_together(comm, [&] {
    const FoundCheckpoints found = find_checkpoints(folder);
    // Every rank looks: one on another host may not see the folder. Rank 0 alone tells.
    if (comm.rank() == 0 && resume && on_notice) {
      for (const std::string& line : found.skipped) on_notice(line);
    }
    if (resume && found.whole.empty()) {
      fail<InvalidArgument>(
          "checkpoint: {} has no whole checkpoint to resume from; one is required; nearest: train "
          "without --resume",
          folder);
    }
    if (!resume && !found.whole.empty()) {
      fail<InvalidArgument>(
          "checkpoint: {} has checkpoints, up to step {}; a run folder without any is required; "
          "nearest: --resume, or another job.dump_folder",
          folder, found.whole.back().step);
    }
    if (resume) path = found.whole.back().path;
  });
  // The choice of rank 0 is that of all: a folder may be finished between two looks.
  return comm::text_of_rank(comm, 0, path);
}

Restored restore(comm::Communicator& comm, const std::string& path, const Recipe& recipe,
                 const Data& data, const std::vector<StateTensor>& state) {
  Restored restored;
  comm::run_together(comm, [&] {
    const Checkpoint checkpoint(path);
    restored = {.progress = checkpoint.manifest().progress,
                .recipe = parse_recipe(checkpoint.recipe(), path + "/" + kRecipeName)};
    check_resumable(recipe, restored.recipe);
    check_steps(restored.progress, recipe);
    check_data(restored.progress, data);
    // Each rank hashes a share, and run_together() tells all of them of a bad one.
    checkpoint.verify(comm.rank(), comm.world());
    // Every rank has the whole state, so every rank reads all of it, whatever world wrote it.
    for (const StateTensor& to : state) {
      const auto from = checkpoint.bytes(to.info());
      if (!from.empty()) std::memcpy(to.tensor.data_ptr(), from.data(), from.size());
    }
  });
  return restored;
}

}  // namespace armillary::train
