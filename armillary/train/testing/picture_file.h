// picture_file.h: files of pictures, and a recipe of a small DiT that reads them, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "armillary/io/file_system.h"
#include "armillary/io/safetensors.h"
#include "armillary/model/dit_options.h"
#include "armillary/train/picture_data.h"
#include "armillary/train/recipe.h"

namespace armillary::train {

/// Writes pictures of bytes with a pattern, classes in turn, and so many words of 7.
inline void write_pictures(const std::string& path, const model::PictureShape& shape,
                           std::int64_t count, std::int64_t n_classes,
                           std::int64_t text_tokens = 5) {
  std::vector<std::int64_t> words;
  std::vector<std::uint8_t> pictures;
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t k = 0; k < shape.values(); ++k) {
      pictures.push_back(static_cast<std::uint8_t>((i * 37 + k * k * 5 + k * (i + 3)) % 256));
    }
    classes.push_back(i % n_classes);
    for (std::int64_t k = 0; k < text_tokens; ++k) words.push_back((i * i + 3 * k) % 7);
  }
  io::write_safetensors(
      io::real_file_system(), path,
      {{{.name = "pictures",
         .dtype = io::TensorDtype::U8,
         .shape = {count, shape.height, shape.width, shape.channels}},
        std::as_bytes(std::span(pictures))},
       {{.name = "classes", .dtype = io::TensorDtype::I64, .shape = {count}},
        std::as_bytes(std::span(classes))},
       {{.name = "text", .dtype = io::TensorDtype::I64, .shape = {count, text_tokens}},
        std::as_bytes(std::span(words))}},
      {});
}

/// 15 tokens a picture, of 3 classes, 4 heads.
inline Recipe small_dit_recipe() {
  Recipe recipe;
  recipe.model.name = "dit";
  recipe.model.dim = 24;
  recipe.model.n_layers = 2;
  recipe.model.n_heads = 4;
  recipe.model.hidden_dim = 40;
  recipe.model.image_height = 6;
  recipe.model.image_width = 10;
  recipe.model.channels = 2;
  recipe.model.patch_size = 2;
  recipe.model.n_classes = 3;
  recipe.model.class_dropout = 0.3;
  recipe.training.seq_len = 15;
  recipe.parallelism.mask = "full";
  return recipe;
}

/// The same with 5 words in front of the patches: 20 tokens.
inline Recipe small_text_dit_recipe() {
  Recipe recipe = small_dit_recipe();
  recipe.model.text_tokens = 5;
  recipe.model.vocab_size = 7;
  recipe.training.seq_len = 20;
  return recipe;
}

/// 15 tokens again, with cross-attention over 5 words.
inline Recipe small_cross_dit_recipe(const std::string& modulation = "single") {
  Recipe recipe = small_text_dit_recipe();
  recipe.model.words = "cross";
  recipe.model.modulation = modulation;
  recipe.training.seq_len = 15;
  return recipe;
}

/// The options of the data of a recipe.
inline PictureOptions picture_options(const Recipe& recipe) {
  const model::DitOptions dit = model::dit_options(recipe.model);
  return {.shape = dit.picture,
          .n_classes = dit.n_classes,
          .text_tokens = dit.text_tokens,
          .vocab_size = dit.vocab_size,
          .words = dit.words,
          .class_dropout = recipe.model.class_dropout,
          .seed = recipe.training.seed};
}

}  // namespace armillary::train
