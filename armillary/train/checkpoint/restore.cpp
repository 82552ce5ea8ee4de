// Restoring, in the order in which errors help most: is it a checkpoint of this recipe and data,
// are its bytes those that were written, and last, are the tensors those of the model.
#include "armillary/train/checkpoint/restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "armillary/comm/together.h"
#include "armillary/core/error.h"
#include "armillary/core/user_text.h"
#include "armillary/train/checkpoint/checkpoint.h"
#include "armillary/train/checkpoint/folder.h"

namespace armillary::train {
namespace {

/// The data must be made as it was: the first line that differs names the file, the tokenizer or
/// the packing that is another.
void check_identity(const RunProgress& progress, const std::vector<std::string>& lines) {
  const auto [mine, required] = std::ranges::mismatch(lines, progress.data);
  if (mine == lines.end() && required == progress.data.end()) return;
  const auto text = [](auto line, auto end) {
    return line == end ? std::string("nothing more") : excerpt(*line);
  };
  fail<InvalidArgument>(
      "checkpoint: data with {} given; {}, as the run began, is required: training.dataset_path "
      "must name the data with which the run began",
      text(mine, lines.end()), text(required, progress.data.end()));
}

/// The data must go on where it stopped.
void check_data(const RunProgress& progress, const Data& data) {
  if (data.vocab_size() != progress.vocab_size) {
    fail<InvalidArgument>(
        "checkpoint: data with a vocabulary of {} given; {}, that of the checkpoint, is required",
        data.vocab_size(), progress.vocab_size);
  }
  check_identity(progress, data.identity());
  const std::int64_t last = progress.sequences_read - 1;
  const std::string hash = hash_of(data.at(last));
  if (hash != progress.last_sequence) {
    fail<InvalidArgument>(
        "checkpoint: sequence {} of the data has hash {}; {} is required: training.dataset_path "
        "must name the text with which the run began",
        last, hash, progress.last_sequence);
  }
}

}  // namespace

io::TensorDtype StateTensor::dtype() const {
  return tensor.scalar_type() == at::kDouble ? io::TensorDtype::F64 : io::TensorDtype::F32;
}

SavedTensor StateTensor::saved() const {
  return {{{.name = name, .dtype = dtype(), .shape = range.size},
           {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}},
          range};
}

std::vector<StateTensor> state_of(const std::vector<Piece>& pieces) {
  std::vector<StateTensor> state;
  // One name for each parameter and kind: "parameters/NAME", "means/NAME", "squares/NAME".
  const auto add = [&](const char* kind, at::Tensor Piece::*member) {
    for (const Piece& piece : pieces) {
      state.push_back({fmt::format("{}/{}", kind, piece.name), piece.*member, piece.range});
    }
  };
  add("parameters", &Piece::value);
  add("means", &Piece::mean);
  add("squares", &Piece::square);
  return state;
}

void check_no_other(const std::string& path, const std::vector<std::string>& tensors,
                    const std::vector<model::Parameter>& parameters) {
  std::set<std::string_view> names;
  for (const model::Parameter& parameter : parameters) names.insert(parameter.name);
  for (const std::string& tensor : tensors) {
    // "means/NAME": the kinds are those of state_of().
    const std::string_view name = std::string_view(tensor).substr(tensor.find('/') + 1);
    if (names.contains(name)) continue;
    fail<IoError>(
        "checkpoint: {} has tensor {}, which is of no parameter of the model; a checkpoint of this "
        "model is required",
        excerpt(path), quote(tensor));
  }
}

std::string choose_checkpoint(comm::Communicator& comm, const std::string& folder, bool resume,
                              const std::function<void(const std::string&)>& on_notice) {
  std::string path;
  comm::run_together(comm, [&] {
    const FoundCheckpoints checkpoints = find_checkpoints(folder);
    // Every rank looks: one on another host may not see the folder. Rank 0 alone tells.
    if (comm.rank() == 0 && resume && on_notice) {
      for (const std::string& line : checkpoints.skipped) on_notice(line);
    }
    if (resume && checkpoints.whole.empty()) {
      fail<InvalidArgument>(
          "checkpoint: {} has no whole checkpoint to resume from; one is required; nearest: train "
          "without --resume",
          excerpt(folder));
    }
    if (!resume && !checkpoints.whole.empty()) {
      fail<InvalidArgument>(
          "checkpoint: {} has checkpoints, up to step {}; a run folder without any is required; "
          "nearest: --resume, or another job.dump_folder",
          excerpt(folder), checkpoints.whole.back().step);
    }
    if (resume) path = checkpoints.whole.back().path;
  });
  // The choice of rank 0 is that of all: a folder may be finished between two looks.
  return comm::text_of_rank(comm, 0, path);
}

Restored restore(comm::Communicator& comm, const std::string& path, const CheckResumable& check,
                 const Data& data, const std::vector<StateTensor>& state) {
  Restored restored;
  comm::run_together(comm, [&] {
    const Checkpoint checkpoint(path);
    restored = {
        .progress = checkpoint.manifest().progress, .recipe = checkpoint.recipe(), .tensors = {}};
    for (const io::TensorInfo& info : checkpoint.tensors()) restored.tensors.push_back(info.name);
    check(restored);
    check_data(restored.progress, data);
    // Each rank hashes a share, and run_together() tells all of them of a bad one.
    checkpoint.verify(comm.rank(), comm.world());
    // Every rank reads its ranges of all tensors, whatever ranges and ranks wrote them.
    for (const StateTensor& to : state) {
      checkpoint.read(to.name, to.dtype(), to.range,
                      {static_cast<std::byte*>(to.tensor.data_ptr()), to.tensor.nbytes()});
    }
  });
  return restored;
}

}  // namespace armillary::train
