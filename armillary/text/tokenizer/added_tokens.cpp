#include "armillary/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "armillary/text/tokenizer/unicode.h"

namespace armillary::tokenizer {
namespace {

bool is_white_space(std::uint32_t code_point) {
  return (white_space() >> kind_of_code_point(code_point) & 1U) != 0;
}

/// Begin of the white space that ends at `at`, from `least` on.
std::size_t white_space_begin(std::string_view text, std::size_t at, std::size_t least) {
  while (at > least) {
    const std::size_t before = previous_code_point(text, at);
    std::size_t i = before;
    if (!is_white_space(next_code_point(text, i))) break;
    at = before;
  }
  return at;
}

/// End of the white space that begins at `at`.
std::size_t white_space_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t i = at;
    if (!is_white_space(next_code_point(text, i))) break;
    at = i;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens) : tokens_(tokens), tree_(1) {
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    std::int32_t node = 0;
    for (const char byte : tokens_[t].content) {
      auto& children = tree_[static_cast<std::size_t>(node)].children;
      const auto child = std::ranges::find(children, byte, &std::pair<char, std::int32_t>::first);
      if (child != children.end()) {
        node = child->second;
        continue;
      }
      node = static_cast<std::int32_t>(tree_.size());
      children.emplace_back(byte, node);
      tree_.emplace_back();
    }
    std::int32_t& token = tree_[static_cast<std::size_t>(node)].token;
    if (token < 0) token = static_cast<std::int32_t>(t);
    begins_[static_cast<unsigned char>(tokens_[t].content.front())] = true;
  }
}

std::int32_t AddedTokens::match(std::string_view text, std::size_t at) const {
  std::int32_t longest = -1;
  const ContentBranch* node = tree_.data();
  for (; at < text.size(); ++at) {
    const auto child =
        std::ranges::find(node->children, text[at], &std::pair<char, std::int32_t>::first);
    if (child == node->children.end()) break;
    node = &tree_[static_cast<std::size_t>(child->second)];
    if (node->token >= 0) longest = node->token;
  }
  return longest;
}

void AddedTokens::split(std::string_view text, std::vector<TextPart>& parts) const {
  std::size_t done_at = 0;  // Everything before it is in a part.
  std::size_t at = 0;
  TextSpan run{1, 0};  // White space, all of it; none yet.
  while (at < text.size()) {
    const std::int32_t index = begins_[static_cast<unsigned char>(text[at])] ? match(text, at) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    TextSpan span{at, at + token.content.size()};
    at = span.end;
    // White space that the token before has taken stays there.
    if (token.takes_left) {
      span.begin = std::max(white_space_begin(text, span.begin, done_at), done_at);
    }
    if (token.takes_right) {
      // White space that was looked at is not looked at again.
      const bool is_inside = run.begin <= span.end && span.end <= run.end;
      if (!is_inside) run = {span.end, white_space_end(text, span.end)};
      span.end = run.end;
    }
    if (span.begin > done_at) parts.push_back({{done_at, span.begin}, std::nullopt});
    parts.push_back({span, token.id});
    done_at = span.end;
  }
  if (done_at < text.size()) parts.push_back({{done_at, text.size()}, std::nullopt});
}

}  // namespace armillary::tokenizer
