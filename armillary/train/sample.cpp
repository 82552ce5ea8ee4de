// sample.cpp: a pass has its pictures with their classes and words, then, for guidance in one pass,
// the same without. Which token of which picture a rank has is read as data (PlacesOfTokens).
// Guidance by ranks needs no axis of a mesh: parameters may be divided over both halves of dp.
#include "armillary/train/sample.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "armillary/comm/collectives.h"
#include "armillary/comm/local.h"
#include "armillary/comm/together.h"
#include "armillary/core/count_text.h"
#include "armillary/core/error.h"
#include "armillary/model/dit_options.h"
#include "armillary/model/named_random.h"
#include "armillary/runtime/or_abort.h"
#include "armillary/train/checkpoint/model_folder.h"
#include "armillary/train/dtypes.h"
#include "armillary/train/forward_rank.h"
#include "armillary/train/mesh.h"
#include "armillary/train/same_recipe.h"
#include "armillary/train/tensor_array.h"

namespace armillary::train {
namespace {

constexpr const char* kPlaces = "places";

/// Sequences whose every field is the place of a token among those of all sequences.
class PlacesOfTokens : public Data {
 public:
  PlacesOfTokens(std::int64_t tokens, std::vector<std::string> fields)
      : tokens_(tokens), fields_(std::move(fields)) {
    fields_.emplace_back(kPlaces);
  }

  std::int64_t vocab_size() const override { return 0; }
  Sequence at(std::int64_t index) const override {
    const at::Tensor places_S = at::arange(index * tokens_, (index + 1) * tokens_, at::kLong);
    Sequence sequence{.fields = {}, .documents = {tokens_}};
    for (const std::string& field : fields_) sequence.fields.set(field, places_S);
    return sequence;
  }

 private:
  std::int64_t tokens_;
  std::vector<std::string> fields_;
};

/// Ranks along dp that have pictures of their own.
int owners_of_pictures(const SampleOptions& options, int dp) {
  return options.guidance_by == GuidanceBy::Ranks ? std::max(1, dp / 2) : dp;
}

std::int64_t pictures_of_pass(const SampleOptions& options, int dp) {
  const auto count = static_cast<std::int64_t>(options.classes.size());
  const int owners = owners_of_pictures(options, dp);
  return std::max<std::int64_t>(1,
                                std::min((count + owners - 1) / owners, options.pictures_a_pass));
}

bool is_joined(const SampleOptions& options) {
  return options.guidance != 1 && options.guidance_by == GuidanceBy::Batch;
}

/// Refuses a guidance that leads nowhere, and a way of it that does nothing or that the mesh has no
/// ranks for.
void check_guidance(const SampleOptions& options, const ParallelismOptions& parallelism) {
  const std::string_view way = to_string(options.guidance_by);
  if (!std::isfinite(options.guidance)) {
    fail<InvalidArgument>("sample: --guidance {}; a finite number is required", options.guidance);
  }
  if (options.guidance == 1 && options.guidance_by != GuidanceBy::Batch) {
    fail<InvalidArgument>(
        "sample: --guidance-by {} with --guidance 1, which has one prediction alone; another "
        "--guidance is required; nearest: --guidance-by {}",
        way, to_string(GuidanceBy::Batch));
  }
  const int dp = mesh_of(parallelism).dp;
  if (options.guidance_by != GuidanceBy::Ranks || dp % 2 == 0) return;
  fail<InvalidArgument>(
      "sample: --guidance-by {} with {} along dp; an even number is required, half of them for "
      "each prediction; nearest: parallelism.data_parallel_shard_degree = {}",
      way, count_of(dp, "rank"), parallelism.data_parallel_shard_degree + 1);
}

/// This rank along dp and the one as far into the other half; the one that is told is rank 0.
std::unique_ptr<comm::Communicator> twins_of(const comm::Mesh& mesh) {
  comm::Communicator& dp = mesh.along(MeshAxis::Dp);
  return dp.split(dp.rank() % (dp.world() / 2), dp.rank());
}

/// Sequences of a pass, by what they are told.
struct ToldSequences {
  std::vector<std::int64_t> labels;  ///< Class of each.
  std::size_t with_words = 0;        ///< The first of them; the others are told no words.
};

/// Refuses words that the model has not.
void check_words_of_sample(const model::DitOptions& dit, const std::vector<std::int64_t>& words) {
  const auto count = static_cast<std::int64_t>(words.size());
  if (count != dit.text_tokens) {
    fail<InvalidArgument>("sample: {} words; {}, model.text_tokens, are required", count,
                          dit.text_tokens);
  }
  for (const std::int64_t word : words) {
    if (word >= 0 && word <= dit.vocab_size) continue;
    fail<InvalidArgument>(
        "sample: word {}; one below {}, model.vocab_size, or {} for none, is required; nearest: {}",
        word, dit.vocab_size, dit.vocab_size, word < 0 ? 0 : dit.vocab_size);
  }
}

/// Refuses what no sampler can do.
void check_sample(const Recipe& recipe, const SampleOptions& options) {
  if (recipe.model.name != "dit") {
    fail<InvalidArgument>("sample: model.name {}; dit, which makes pictures, is required",
                          recipe.model.name);
  }
  if (!options.checkpoint.empty() && !options.init_from.empty()) {
    fail<InvalidArgument>("sample: a checkpoint {} and --init-from {} given; one is required",
                          options.checkpoint, options.init_from);
  }
  const std::int64_t none = recipe.model.n_classes;
  for (const std::int64_t label : options.classes) {
    if (label >= 0 && label <= none) continue;
    fail<InvalidArgument>(
        "sample: class {}; one below {}, model.n_classes, or {} for none, is required; nearest: {}",
        label, none, none, label < 0 ? 0 : none);
  }
  check_words_of_sample(model::dit_options(recipe.model), options.words);
  check_guidance(options, recipe.parallelism);
  const auto count = static_cast<std::int64_t>(options.classes.size());
  if (std::min({count, options.steps, options.pictures_a_pass}) < 1) {
    fail<InvalidArgument>(
        "sample: {} pictures, {} in a pass, in {} steps; at least 1 of each is required", count,
        options.pictures_a_pass, options.steps);
  }
}

/// Refuses what ranks must not differ in.
void expect_same_sampling(comm::Communicator& world, const Recipe& recipe,
                          const SampleOptions& options) {
  std::vector<std::string> lines = settings(recipe);
  lines.push_back("parameters of " + options.checkpoint + options.init_from);
  lines.push_back(fmt::format("classes = {}", fmt::join(options.classes, ",")));
  lines.push_back(fmt::format("words = {}", fmt::join(options.words, ",")));
  lines.push_back(fmt::format("steps = {}, guidance = {} by {}, seed = {}", options.steps,
                              options.guidance, to_string(options.guidance_by), options.seed));
  expect_same_settings(world, std::move(lines));
}

/// The noise of a picture, as patches.
at::Tensor first_noise(const model::PictureShape& shape, std::int64_t seed, std::int64_t picture) {
  const at::Tensor noise_SC = at::empty({shape.tokens(), shape.patch_values()}, at::kFloat);
  model::NamedRandom(seed, fmt::format("noise of picture {}", picture))
      .fill_normal(
          0, {noise_SC.mutable_data_ptr<float>(), static_cast<std::size_t>(noise_SC.numel())});
  return noise_SC.to(at::kDouble);
}

/// One rank's part of a sampling.
class RankSampler {
 public:
  RankSampler(const comm::Mesh& mesh, model::Model& model, const Recipe& recipe,
              const SampleOptions& options)
      : mesh_(mesh),
        options_(options),
        dit_(model::dit_options(recipe.model)),
        shape_(dit_.picture),
        owners_(owners_of_pictures(options, mesh.size(MeshAxis::Dp))),
        is_told_(mesh.index(MeshAxis::Dp) < owners_),
        gives_(is_told_ && mesh.index(MeshAxis::Cp) == 0 && mesh.index(MeshAxis::Tp) == 0),
        data_(dit_.tokens(), model.fields()),
        twins_(options.guidance_by == GuidanceBy::Ranks ? twins_of(mesh) : nullptr),
        rank_(mesh, model, recipe) {
    rank_.load(options.checkpoint, options.init_from);
  }

  /// The pictures of all classes, as patches.
  at::Tensor patches() {
    const auto count = static_cast<std::int64_t>(options_.classes.size());
    const std::int64_t many = pictures_of_pass(options_, mesh_.size(MeshAxis::Dp));
    const std::int64_t before = mesh_.index(MeshAxis::Dp) % owners_ * many;
    const at::Tensor all_NSC =
        at::zeros({count, shape_.tokens(), shape_.patch_values()}, at::kDouble);
    for (std::int64_t first = 0; first < count; first += owners_ * many) {
      // Ranks along dp take as many passes; a picture behind the last is the last once more.
      std::vector<std::int64_t> mine;
      for (std::int64_t i = 0; i < many; ++i) {
        mine.push_back(std::min(first + before + i, count - 1));
      }
      const at::Tensor x_PSC = sampled(mine);
      for (std::int64_t i = 0; i < many; ++i) {
        const std::int64_t picture = first + before + i;
        if (picture < count && gives_) all_NSC[picture].copy_(x_PSC[i]);
      }
    }
    comm::all_reduce(mesh_.world(), array_of(all_NSC));
    return all_NSC;
  }

 private:
  /// These pictures.
  at::Tensor sampled(const std::vector<std::int64_t>& pictures) {
    std::vector<at::Tensor> noise;
    std::vector<std::int64_t> labels;
    for (const std::int64_t picture : pictures) {
      noise.push_back(first_noise(shape_, options_.seed, picture));
      labels.push_back(options_.classes[static_cast<std::size_t>(picture)]);
    }
    at::Tensor x_PSC = at::stack(noise);
    const Microbatch pass = rank_.read(data_, 0);
    for (std::int64_t step = 0; step < options_.steps; ++step) {
      const auto time = [&](std::int64_t taken) {
        return static_cast<double>(options_.steps - taken) / static_cast<double>(options_.steps);
      };
      const model::TimeStep times{.from = time(step), .to = time(step + 1)};
      x_PSC = denoised(dit_.objective, x_PSC, guided(pass, x_PSC, labels, times.from), times);
    }
    return x_PSC;
  }

  /// The prediction that is told the classes and words, led away from that for none; of all tokens.
  at::Tensor guided(const Microbatch& pass, const at::Tensor& x_PSC,
                    const std::vector<std::int64_t>& labels, double time) {
    const ToldSequences all{labels, labels.size()};
    const auto predict = [&](const ToldSequences& told) {
      return predicted(pass, x_PSC, told, time);
    };
    if (options_.guidance == 1) return whole(pass, predict(all));
    const ToldSequences none{std::vector<std::int64_t>(labels.size(), dit_.n_classes), 0};
    if (options_.guidance_by == GuidanceBy::Ranks) {
      const at::Tensor both_WLC = exchanged(predict(is_told_ ? all : none));
      return whole(pass, led(both_WLC[0], both_WLC[1]));
    }
    if (options_.guidance_by == GuidanceBy::Passes) {
      const at::Tensor told_LC = predict(all);
      return whole(pass, led(told_LC, predict(none)));
    }
    ToldSequences both = all;
    both.labels.insert(both.labels.end(), none.labels.begin(), none.labels.end());
    const at::Tensor all_PSC = whole(pass, predicted(pass, x_PSC.repeat({2, 1, 1}), both, time));
    const auto halves = all_PSC.chunk(2, 0);
    return led(halves[0], halves[1]);
  }

  /// Twins have the same operands in the same order here, so they go on with the same bits.
  at::Tensor led(const at::Tensor& told, const at::Tensor& none) const {
    const at::Tensor from = none.to(at::kDouble);
    return from + (told.to(at::kDouble) - from) * options_.guidance;
  }

  /// The predictions of the twins for the tokens that both have: the one that is told, then that
  /// for none.
  at::Tensor exchanged(const at::Tensor& mine_LC) {
    const at::Tensor both_WLC = at::empty({2, mine_LC.size(0), mine_LC.size(1)}, mine_LC.options());
    comm::all_gather(*twins_, array_of(mine_LC), array_of(both_WLC));
    return both_WLC;
  }

  /// The prediction for this rank's tokens of the sequences of a pass, in the model's dtype.
  at::Tensor predicted(const Microbatch& pass, const at::Tensor& x_PSC, const ToldSequences& told,
                       double time) {
    const at::Tensor places_L = places_of(pass);
    const std::int64_t width = shape_.patch_values();
    // Joint words are patches of zeros.
    const at::Tensor words_PTC =
        at::zeros({x_PSC.size(0), dit_.words_in_front(), width}, at::kDouble);
    const at::Tensor rows_NC = at::cat({words_PTC, x_PSC}, 1).reshape({-1, width});
    const at::Tensor classes_L =
        at::tensor(told.labels, at::kLong).index_select(0, places_L.div(dit_.tokens(), "floor"));
    model::Fields batch{{model::kPatches, rows_NC.index_select(0, places_L).unsqueeze(0)},
                        {model::kTimes, at::full({1, places_L.size(0)}, time, at::kDouble)},
                        {model::kClasses, classes_L.unsqueeze(0)}};
    if (dit_.words_in_front() > 0) {
      batch.set(model::kText, text_of(told).index_select(0, places_L).unsqueeze(0));
    }
    if (dit_.has_cross_attention()) {
      const at::Tensor picture_L = places_L.div(dit_.tokens(), "floor");
      batch.set(model::kWords, words_of(told).index_select(0, picture_L).unsqueeze(0));
    }
    return rank_.forward(pass, batch).squeeze(0).contiguous();
  }

  /// The patches of all sequences of a pass, from those of this rank; on all ranks along cp and tp.
  at::Tensor whole(const Microbatch& pass, const at::Tensor& mine_LC) {
    const std::int64_t width = shape_.patch_values();
    const at::Tensor all_NC = at::zeros({pass.sequences * dit_.tokens(), width}, at::kDouble);
    all_NC.index_copy_(0, places_of(pass), mine_LC.to(at::kDouble));
    // Each value is there on one rank along cp: the sum is exact.
    comm::all_reduce(mesh_.along(MeshAxis::Cp), array_of(all_NC));
    return all_NC.view({pass.sequences, dit_.tokens(), width})
        .narrow(1, dit_.words_in_front(), shape_.tokens());
  }

  static at::Tensor places_of(const Microbatch& pass) { return pass.batch.at(kPlaces).squeeze(0); }

  /// The words of each sequence.
  at::Tensor words_of(const ToldSequences& told) const {
    const auto count = static_cast<std::int64_t>(told.labels.size());
    at::Tensor words_PT = at::full({count, dit_.text_tokens}, dit_.vocab_size, at::kLong);  // none
    words_PT.narrow(0, 0, static_cast<std::int64_t>(told.with_words))
        .copy_(at::tensor(options_.words, at::kLong));
    return words_PT;
  }

  /// The words of all tokens of all sequences, [N].
  at::Tensor text_of(const ToldSequences& told) const {
    const auto count = static_cast<std::int64_t>(told.labels.size());
    at::Tensor text_PL = at::full({count, dit_.tokens()}, model::kPatchOfPicture, at::kLong);
    text_PL.narrow(1, 0, dit_.text_tokens).copy_(words_of(told));
    return text_PL.flatten();
  }

  const comm::Mesh& mesh_;
  const SampleOptions& options_;
  const model::DitOptions dit_;
  const model::PictureShape shape_;
  const int owners_;    ///< Ranks along dp with pictures of their own.
  const bool is_told_;  ///< Not where this rank predicts for none alone.
  const bool gives_;  ///< Whether it gives its pictures to all: the first of those that have them.
  const PlacesOfTokens data_;
  std::unique_ptr<comm::Communicator> twins_;  ///< Null: guidance is not by ranks.
  ForwardRank rank_;
};

}  // namespace

Recipe sample_recipe(Recipe recipe, const SampleOptions& options) {
  const int dp = mesh_of(recipe.parallelism).dp;
  const std::int64_t sequences = (is_joined(options) ? 2 : 1) * pictures_of_pass(options, dp);
  recipe.training.local_batch_size = sequences;
  recipe.training.global_batch_size = sequences * dp;
  recipe.activation_checkpoint.mode = "none";
  recipe.lr_scheduler = {};
  return recipe;
}

at::Tensor sample(const comm::Mesh& mesh, model::Model& model, const Recipe& recipe,
                  const SampleOptions& options) {
  check_built(mesh.shape());
  comm::Communicator& world = mesh.world();
  const Recipe one_pass = sample_recipe(recipe, options);
  return runtime::or_abort(world, [&] {
    expect_same_sampling(world, one_pass, options);
    comm::run_together(world, [&] {
      check_sample(one_pass, options);
      check_dtypes(one_pass.training,
                   std::int64_t{mesh.size(MeshAxis::Dp)} * mesh.size(MeshAxis::Cp));
      model::check_parameters(model.parameters(), model.units(), mesh.size(MeshAxis::Tp));
      if (!options.init_from.empty()) {
        check_source(options.init_from, one_pass.model, model.parameters());
      }
    });
    const model::PictureShape shape = model::dit_options(one_pass.model).picture;
    std::vector<at::Tensor> pictures;
    const at::Tensor patches_NSC = RankSampler(mesh, model, one_pass, options).patches();
    for (std::int64_t i = 0; i < patches_NSC.size(0); ++i) {
      pictures.push_back(picture_of(patches_NSC[i], shape));
    }
    return at::stack(pictures);
  });
}

at::Tensor sample(const Recipe& recipe, const SampleOptions& options, const RunRanks& run_ranks) {
  check_sample(recipe, options);
  const Recipe one_pass = sample_recipe(recipe, options);
  validate(one_pass);
  at::Tensor result;
  const auto body = [&](comm::Communicator& comm) {
    at::set_num_threads(static_cast<int>(one_pass.parallelism.threads_per_rank));
    const std::unique_ptr<model::Model> model = make_model(one_pass);
    const comm::Mesh mesh(comm, mesh_of(one_pass.parallelism));
    const at::Tensor mine = sample(mesh, *model, one_pass, options);
    if (comm.rank() == 0) result = mine;
  };
  const int world = mesh_of(one_pass.parallelism).ranks();
  const double timeout_s = one_pass.comm.train_timeout_seconds;
  if (run_ranks) {
    run_ranks(world, timeout_s, body);
  } else {
    comm::run_ranks(world, body, {.timeout_s = timeout_s});
  }
  return result;
}

}  // namespace armillary::train
