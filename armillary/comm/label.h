// label.h: what the two sides of a message must agree on besides its bytes. Internal to comm: the
// messages of a collective are labelled with the call (call_labels.h), so that ranks that call
// differently are told both calls, without a message of its own.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <type_traits>

namespace armillary::comm {

/// A text of fixed size, padded with zeros. It travels as bytes.
struct Label {
  std::array<char, 56> text = {};
  bool operator==(const Label&) const = default;
};
static_assert(sizeof(Label) == 56 && std::has_unique_object_representations_v<Label>);

/// The label of a text; one that is too long is cut and ends with its hash.
Label label_of(std::string_view text);

/// Whether two sides agree; null stands for a message without a label.
bool is_same(const Label* a, const Label* b);

/// "rank 0 calls all_gather of 3 fp32, rank 1 calls all_gather of 4 fp32; the same call is required
/// on all ranks", the lower rank first.
std::string difference_text(int rank_a, const Label* a, int rank_b, const Label* b);

}  // namespace armillary::comm
