// small_dit.h: a small DiT of any kind of layers, and pictures for it in one pass, for tests.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "armillary/model/testing/plain_dit.h"

namespace armillary::model {

/// 6 patches, 3 heads, 3 classes, fp64.
inline DitOptions small_dit() {
  DitOptions options;
  options.layers = DecoderOptions()
                       .dim(24)
                       .n_layers(2)
                       .n_heads(3)
                       .n_kv_heads(3)
                       .hidden_dim(40)
                       .norm_eps(1e-6)
                       .bias(true)
                       .dtype(at::kDouble);
  options.picture = {.height = 6, .width = 4, .channels = 2, .patch = 2};
  options.n_classes = 3;
  return options;
}

/// Three of them; two have the same time.
inline std::vector<PlainPicture> drawn_pictures(const PictureShape& shape) {
  at::Generator generator = at::detail::createCPUGenerator(9);
  const auto drawn = [&] {
    return at::empty({shape.tokens(), shape.patch_values()}, at::kDouble).normal_(0, 1, generator);
  };
  std::vector<PlainPicture> pictures;
  for (const auto& [time, label] : {std::pair(0.25, 2), std::pair(0.8, 0), std::pair(0.8, 3)}) {
    const at::Tensor patches_LC = drawn();
    pictures.push_back({patches_LC, drawn(), time, label});
  }
  return pictures;
}

/// Pictures as one sequence, with words of their own if they have any; attention within each.
inline ModelInputs joined_pictures(const std::vector<PlainPicture>& pictures,
                                   bool with_noise = true) {
  std::vector<at::Tensor> patches, noise, times, classes, words, positions, owners;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    const std::int64_t tokens = pictures[i].patches_LC.size(0);
    patches.push_back(pictures[i].patches_LC);
    noise.push_back(pictures[i].noise_LC);
    times.push_back(at::full({tokens}, pictures[i].time, at::kDouble));
    classes.push_back(at::full({tokens}, pictures[i].label, at::kLong));
    const auto count = static_cast<std::int64_t>(pictures[i].words.size());
    words.push_back(at::tensor(pictures[i].words, at::kLong).expand({tokens, count}));
    positions.push_back(at::arange(tokens, at::kLong));
    owners.push_back(at::full({tokens}, static_cast<std::int64_t>(i), at::kLong));
  }
  const at::Tensor owner_L = at::cat(owners);
  const auto attend = [visible_LL = owner_L.unsqueeze(1).eq(owner_L.unsqueeze(0))](
                          const at::Tensor& q_BLHD, const at::Tensor& k_BLGD,
                          const at::Tensor& v_BLGD) {
    return at::scaled_dot_product_attention(q_BLHD.transpose(1, 2), k_BLGD.transpose(1, 2),
                                            v_BLGD.transpose(1, 2), visible_LL)
        .transpose(1, 2);
  };
  Fields batch{{kPatches, at::cat(patches).unsqueeze(0)},
               {kTimes, at::cat(times).unsqueeze(0)},
               {kClasses, at::cat(classes).unsqueeze(0)}};
  if (!pictures.front().words.empty()) batch.set(kWords, at::cat(words).unsqueeze(0));
  if (with_noise) batch.set(kNoise, at::cat(noise).unsqueeze(0));
  return {.batch = batch, .positions_L = at::cat(positions), .attends = {attend}};
}

/// The largest difference.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

/// The same with layers of this kind; cross-attention is over 2 words of 5.
inline DitOptions small_dit(ModulationKind modulation, WordsKind words) {
  DitOptions options = small_dit();
  options.modulation = modulation;
  options.words = words;
  if (words == WordsKind::Cross) {
    options.text_tokens = 2;
    options.vocab_size = 5;
  }
  return options;
}

/// Every modulation, with cross-attention and without words.
inline std::vector<DitOptions> small_dits() {
  std::vector<DitOptions> all;
  for (const auto modulation : {ModulationKind::Zero, ModulationKind::Single}) {
    for (const auto words : {WordsKind::Joint, WordsKind::Cross}) {
      all.push_back(small_dit(modulation, words));
    }
  }
  return all;
}

/// drawn_pictures() for a model. With words the last two have the same time and class, and differ
/// in their words.
inline std::vector<PlainPicture> told_pictures(const DitOptions& options) {
  std::vector<PlainPicture> pictures = drawn_pictures(options.picture);
  if (!options.has_cross_attention()) return pictures;
  pictures[2].label = pictures[1].label;
  pictures[0].words = {3, 1};
  pictures[1].words = {5, 5};
  pictures[2].words = {1, 0};
  return pictures;
}

/// Name of the kind of a model's layers, for texts of failures.
inline std::string kind_text(const DitOptions& options) {
  return modulation_names()[static_cast<std::size_t>(options.modulation)] + " " +
         words_names()[static_cast<std::size_t>(options.words)];
}

}  // namespace armillary::model
