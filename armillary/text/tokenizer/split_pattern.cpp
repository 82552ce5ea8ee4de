// split_pattern.cpp: a tree becomes steps; each choice of the whole pattern has the sets with which
// it may begin, so that most choices are passed over without a step. Nearly all of what tokenizers
// write is a run of one set, which is one step.
#include "armillary/text/tokenizer/split_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::tokenizer {
namespace {

constexpr std::size_t kNoMatch = std::string_view::npos;
constexpr std::size_t kMostPatternSteps = 20000;
/// Steps of all matches of a text: all that is linear needs some ten a byte.
constexpr std::int64_t kStepsPerByte = 200;
constexpr std::int64_t kLeastSteps = 100000;

using NodeKind = PatternNodeKind;
using StepKind = PatternStepKind;

[[noreturn]] void refuse_pattern(const std::string& pattern, std::string_view fault) {
  fail<InvalidArgument>("tokenizer: pattern {} {}; a pattern that does not is required",
                        quote(pattern), fault);
}

/// The last place that has another way: a run gives back one code point.
std::size_t go_back(std::string_view text, SplitPattern::Scratch& scratch) {
  PatternReturn& back = scratch.back();
  std::size_t at = back.at;
  if (at > back.least_at) {
    at = previous_code_point(text, at);
    back.at = at;
  }
  if (back.at == back.least_at) scratch.pop_back();
  return at;
}

}  // namespace

SplitPattern::SplitPattern(std::string pattern) : pattern_(std::move(pattern)) {
  const PatternNode tree = parse_pattern(pattern_);
  number_sets(tree);
  table_ = SetTable(sets_);
  const bool is_choice = tree.kind == NodeKind::Choice;
  for (const PatternNode& branch : is_choice ? tree.children : std::vector{tree}) {
    const FirstSets first = first_sets(branch);
    if (first.may_be_empty) refuse_pattern(pattern_, "matches the empty text");
    branches_.push_back({first.sets, steps_.size()});
    firsts_ |= first.sets;
    compile(branch);
    add({.kind = StepKind::Match});
  }
}

void SplitPattern::number_sets(const PatternNode& node) {
  const bool is_set = node.kind == NodeKind::Set;
  if (is_set && std::ranges::find(sets_, node.set) == sets_.end()) {
    if (sets_.size() == kMostSets) refuse_pattern(pattern_, "has more than 64 sets");
    sets_.push_back(node.set);
  }
  for (const PatternNode& child : node.children) number_sets(child);
}

SetMask SplitPattern::bit_of(const CodePointSet& set) const {
  return SetMask{1} << (std::ranges::find(sets_, set) - sets_.begin());
}

SplitPattern::FirstSets SplitPattern::first_sets(const PatternNode& node) const {
  if (node.kind == NodeKind::Set) return {bit_of(node.set), false};
  if (node.kind == NodeKind::Choice) {
    FirstSets all;
    for (const PatternNode& child : node.children) {
      const FirstSets first = first_sets(child);
      all.sets |= first.sets;
      all.may_be_empty |= first.may_be_empty;
    }
    return all;
  }
  if (node.kind == NodeKind::Repeat) {
    FirstSets first = first_sets(node.children.front());
    if (first.may_be_empty) refuse_pattern(pattern_, "repeats a group that may be empty");
    first.may_be_empty = node.least == 0;
    return first;
  }
  FirstSets all{.may_be_empty = true};
  if (node.kind != NodeKind::Sequence) return all;  // It takes nothing.
  for (const PatternNode& child : node.children) {
    const FirstSets first = first_sets(child);
    // All of them, for the check of repetitions.
    if (all.may_be_empty) all.sets |= first.sets;
    all.may_be_empty = all.may_be_empty && first.may_be_empty;
  }
  return all;
}

std::size_t SplitPattern::add(PatternStep step) {
  if (steps_.size() == kMostPatternSteps) refuse_pattern(pattern_, "has more than 20000 steps");
  steps_.push_back(step);
  return steps_.size() - 1;
}

void SplitPattern::compile(const PatternNode& node) {
  switch (node.kind) {
    case NodeKind::Set:
      add({.kind = StepKind::Take, .sets = bit_of(node.set)});
      return;
    case NodeKind::Sequence:
      for (const PatternNode& child : node.children) compile(child);
      return;
    case NodeKind::Choice: {
      std::vector<std::size_t> jumps;
      for (std::size_t i = 0; i + 1 < node.children.size(); ++i) {
        const std::size_t fork = add({.kind = StepKind::Fork});
        compile(node.children[i]);
        jumps.push_back(add({.kind = StepKind::Jump}));
        steps_[fork].target = steps_.size();
      }
      compile(node.children.back());
      for (const std::size_t jump : jumps) steps_[jump].target = steps_.size();
      return;
    }
    case NodeKind::Repeat:
      compile_repeat(node);
      return;
    case NodeKind::Ahead: {
      first_sets(node.children.front());  // Checks repetitions in it.
      const std::size_t ahead = add({.kind = StepKind::Ahead, .is_negated = node.is_negated});
      compile(node.children.front());
      add({.kind = StepKind::Match});
      steps_[ahead].target = steps_.size();
      return;
    }
    case NodeKind::LineBegin:
      add({.kind = StepKind::LineBegin});
      return;
    case NodeKind::LineEnd:
      add({.kind = StepKind::LineEnd});
      return;
  }
}

void SplitPattern::compile_repeat(const PatternNode& node) {
  const PatternNode& child = node.children.front();
  if (child.kind == NodeKind::Set) {
    add({.kind = StepKind::Run,
         .sets = bit_of(child.set),
         .least = node.least,
         .most = node.most,
         .is_possessive = node.is_possessive});
    return;
  }
  if (node.is_possessive) refuse_pattern(pattern_, "repeats a group and gives nothing back");
  // The copies that must be there, then those that may be, or a loop.
  for (int i = 0; i < node.least; ++i) compile(child);
  if (node.most < 0) {
    const std::size_t fork = add({.kind = StepKind::Fork});
    compile(child);
    add({.kind = StepKind::Jump, .target = fork});
    steps_[fork].target = steps_.size();
    return;
  }
  std::vector<std::size_t> forks;
  for (int i = node.least; i < node.most; ++i) {
    forks.push_back(add({.kind = StepKind::Fork}));
    compile(child);
  }
  for (const std::size_t fork : forks) steps_[fork].target = steps_.size();
}

std::int64_t SplitPattern::most_steps(std::string_view text) {
  return kLeastSteps + kStepsPerByte * static_cast<std::int64_t>(text.size());
}

TextSpan SplitPattern::find(std::string_view text, std::size_t from, Scratch& scratch,
                            std::int64_t& steps_left) const {
  while (from < text.size()) {
    std::size_t next = from;
    const SetMask sets = table_.at(next_code_point(text, next));
    if ((sets & firsts_) != 0) {
      for (const Branch& branch : branches_) {
        if ((sets & branch.first) == 0) continue;
        scratch.clear();
        const std::size_t end = match(text, branch.step, from, scratch, steps_left);
        if (end != kNoMatch) return {from, end};
      }
    }
    from = next;
  }
  return {text.size(), text.size()};
}

std::size_t SplitPattern::match(std::string_view text, std::size_t step, std::size_t at,
                                Scratch& scratch, std::int64_t& steps_left) const {
  const std::size_t bottom = scratch.size();
  while (true) {
    const PatternStep& now = steps_[step];
    bool fits = true;
    ++step;
    if (--steps_left < 0) {
      refuse_pattern(pattern_, fmt::format("needs more than {} steps a byte", kStepsPerByte));
    }
    switch (now.kind) {
      case StepKind::Take:
        fits = take(text, now.sets, at);
        break;
      case StepKind::Run: {
        std::size_t least_at = at;
        int count = 0;
        while (at < text.size() && count != now.most) {
          std::size_t next = at;
          if ((table_.at(next_code_point(text, next)) & now.sets) == 0) break;
          at = next;
          if (++count == now.least) least_at = at;
        }
        steps_left -= count / 8;
        fits = count >= now.least;
        if (fits && !now.is_possessive && at > least_at) scratch.push_back({step, at, least_at});
        break;
      }
      case StepKind::Fork:
        scratch.push_back({now.target, at, at});
        break;
      case StepKind::Jump:
        step = now.target;
        break;
      case StepKind::Ahead: {
        const bool matches = match(text, step, at, scratch, steps_left) != kNoMatch;
        fits = matches != now.is_negated;
        step = now.target;
        break;
      }
      case StepKind::LineBegin:
        fits = at == 0 || text[at - 1] == '\n';
        break;
      case StepKind::LineEnd:
        fits = at == text.size() || text[at] == '\n';
        break;
      case StepKind::Match:
        scratch.resize(bottom);
        return at;
    }
    if (fits) continue;
    if (scratch.size() == bottom) return kNoMatch;
    step = scratch.back().step;
    at = go_back(text, scratch);
  }
}

bool SplitPattern::take(std::string_view text, SetMask sets, std::size_t& at) const {
  if (at >= text.size()) return false;
  return (table_.at(next_code_point(text, at)) & sets) != 0;
}

}  // namespace armillary::tokenizer
