// pre_tokenizer.cpp: each piece of a step goes through the steps behind it before the next piece is
// cut, so nothing is stored but what the rarer behaviours have to join.
#include "armillary/text/tokenizer/pre_tokenizer.h"

#include <cstdint>
#include <optional>

#include "armillary/text/tokenizer/normalizer.h"

namespace armillary::tokenizer {
namespace {

/// A piece of a text, and whether the pattern matches it.
struct SplitPiece {
  TextSpan span;
  bool is_match = false;
};

/// Matches, and what is between them, in order.
std::vector<SplitPiece> pieces_of(std::string_view text, const SplitStep& step,
                                  PreTokenizerScratch& scratch) {
  std::vector<SplitPiece> pieces;
  std::int64_t steps_left = SplitPattern::most_steps(text);
  for (std::size_t at = 0; at < text.size();) {
    const TextSpan match = step.pattern->find(text, at, scratch.returns, steps_left);
    if (match.begin > at) pieces.push_back({{at, match.begin}, step.is_inverted});
    if (match.end > match.begin) pieces.push_back({match, !step.is_inverted});
    at = match.end;
  }
  return pieces;
}

/// Joins pieces as the behaviour says. The matches of Removed are left out.
std::vector<TextSpan> joined_pieces(const std::vector<SplitPiece>& pieces, SplitBehavior behavior) {
  std::vector<TextSpan> spans;
  bool is_match_before = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& [span, is_match] = pieces[i];
    bool joins = false;
    switch (behavior) {
      case SplitBehavior::Removed:
        if (is_match) continue;
        break;
      case SplitBehavior::Isolated:
        break;
      case SplitBehavior::MergedWithPrevious:
        joins = is_match && !is_match_before;
        break;
      case SplitBehavior::MergedWithNext:
        // The last of the matches in a row goes with what is behind it.
        joins = is_match_before && !is_match;
        break;
      case SplitBehavior::Contiguous:
        joins = i > 0 && is_match == is_match_before;
        break;
    }
    if (joins && !spans.empty()) {
      spans.back().end = span.end;
    } else {
      spans.push_back(span);
    }
    is_match_before = is_match;
  }
  return spans;
}

/// A text on its way through the steps.
class PreTokenizerRun {
 public:
  PreTokenizerRun(const std::vector<PreTokenizerStep>& steps, PreTokenizerScratch& scratch,
                  const std::function<void(std::string_view)>& emit)
      : steps_(steps), scratch_(scratch), emit_(emit) {}

  void run(std::string_view text, bool is_first, std::size_t step) const {
    if (text.empty()) return;
    if (step == steps_.size()) return emit_(text);
    std::visit([&](const auto& now) { run_step(now, text, is_first, step + 1); }, steps_[step]);
  }

 private:
  void run_step(const SplitStep& now, std::string_view text, bool is_first,
                std::size_t next) const {
    if (now.behavior != SplitBehavior::Isolated) {
      for (const TextSpan& span : joined_pieces(pieces_of(text, now, scratch_), now.behavior)) {
        run(text.substr(span.begin, span.end - span.begin), is_first && span.begin == 0, next);
      }
      return;
    }
    std::int64_t steps_left = SplitPattern::most_steps(text);
    for (std::size_t at = 0; at < text.size();) {
      const TextSpan match = now.pattern->find(text, at, scratch_.returns, steps_left);
      run(text.substr(at, match.begin - at), is_first && at == 0, next);
      run(text.substr(match.begin, match.end - match.begin), is_first && match.begin == 0, next);
      at = match.end;
    }
  }

  void run_step(const PrefixBlankStep& /*now*/, std::string_view text, bool is_first,
                std::size_t next) const {
    if (text.front() == ' ') return run(text, is_first, next);
    run(" " + std::string(text), is_first, next);
  }

  void run_step(const MetaspaceStep& now, std::string_view text, bool is_first,
                std::size_t next) const {
    std::string marked = replaced(text, {.text = " ", .with = now.mark});
    const bool prepends = now.prepend == MetaspaceStep::Prepend::Always ||
                          (now.prepend == MetaspaceStep::Prepend::First && is_first);
    if (prepends && !marked.starts_with(now.mark)) marked.insert(0, now.mark);
    if (!now.splits) return run(marked, is_first, next);
    const std::string_view all = marked;
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t end = std::min(all.find(now.mark, begin + 1), all.size());
      run(all.substr(begin, end - begin), is_first && begin == 0, next);
      begin = end;
    }
  }

  const std::vector<PreTokenizerStep>& steps_;
  PreTokenizerScratch& scratch_;
  const std::function<void(std::string_view)>& emit_;
};

}  // namespace

void pre_tokenize(std::string_view text, bool is_first, const std::vector<PreTokenizerStep>& steps,
                  PreTokenizerScratch& scratch,
                  const std::function<void(std::string_view word)>& emit) {
  PreTokenizerRun(steps, scratch, emit).run(text, is_first, 0);
}

}  // namespace armillary::tokenizer
