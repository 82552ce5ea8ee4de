// word.h: the number of a word in a table of a vocabulary: of a kind of op, or of a tensor.
//
// The machine knows numbers only. A vocabulary names them by an enum of its own and says so beside
// it, by the declaration of word_tag(); then numbers and enumerators are compared and converted:
//
//   enum class OpKind : std::uint8_t { Send, Recv, Attend };
//   KindTag word_tag(OpKind);                    // declared only
//   if (op.kind == OpKind::Attend) ..
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace armillary::plan {

/// Enum is one of the enums whose enumerators are words of this sort.
template <class Enum, class Tag>
concept WordEnum = std::is_enum_v<Enum> && requires(Enum word) {
  { word_tag(word) } -> std::same_as<Tag>;
};

template <class Tag>
class Word {
 public:
  constexpr Word() = default;
  constexpr explicit Word(std::uint8_t number) : number_(number) {}
  template <WordEnum<Tag> Enum>
  constexpr Word(Enum word) : number_(static_cast<std::uint8_t>(word)) {}  // NOLINT: see above
  template <WordEnum<Tag> Enum>
  constexpr operator Enum() const {  // NOLINT: see above
    return static_cast<Enum>(number_);
  }
  constexpr std::size_t number() const { return number_; }
  constexpr auto operator<=>(const Word&) const = default;
  constexpr bool operator==(const Word&) const = default;
  template <WordEnum<Tag> Enum>
  constexpr bool operator==(Enum word) const {
    return number_ == static_cast<std::uint8_t>(word);
  }

 private:
  std::uint8_t number_ = 0;
};

struct KindTag {};
struct TensorTag {};
using Kind = Word<KindTag>;        ///< A kind of op: index into Vocabulary::kinds.
using TensorId = Word<TensorTag>;  ///< Index into Vocabulary::tensors.

/// The kinds of messages are the first two of every vocabulary.
inline constexpr Kind kSend{0};  ///< src -> peer: one message of all views, one after the other
inline constexpr Kind kRecv{1};  ///< dst <- peer

}  // namespace armillary::plan
