// fields.h: the values that a model reads and predicts, by name: `tokens` and `labels` of a
// language model, latents and times of a diffusion model. Each is a tensor along the tokens of a
// sequence, of any dtype and with any number of dims behind.
//
//   whole sequence [S, ..]  --rows_of(positions of a rank)-->  batch of one sequence [1, L, ..]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace armillary::model {

inline constexpr const char* kTokens = "tokens";     ///< int64, in the vocabulary.
inline constexpr const char* kLabels = "labels";     ///< int64: the token to predict, or this:
inline constexpr std::int64_t kIgnoredLabel = -100;  ///< No target; PyTorch's ignore_index.

/// Tensors by name, in the order in which they were given. A value: copies share memory.
class Fields {
 public:
  using Field = std::pair<std::string, at::Tensor>;

  Fields() = default;
  Fields(std::initializer_list<Field> fields) : fields_(fields) {}

  /// @throws InvalidArgument with the names that are there.
  const at::Tensor& at(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != fields_.end(); }
  /// Adds a field, or takes the place of the one of this name.
  void set(const std::string& name, at::Tensor values);
  std::vector<std::string> names() const;

  std::vector<Field>::const_iterator begin() const { return fields_.begin(); }
  std::vector<Field>::const_iterator end() const { return fields_.end(); }

 private:
  std::vector<Field>::const_iterator find(std::string_view name) const;

  std::vector<Field> fields_;
};

/// The values at each position, in this order, as a batch of one sequence. positions_L int64.
Fields rows_of(const Fields& sequence, const at::Tensor& positions_L);

/// Labels that are not ignored, or all tokens where there are no labels. Fields [L, ..].
std::int64_t targets_of(const Fields& tokens);

}  // namespace armillary::model
