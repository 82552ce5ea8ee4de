// Prints programs as a grid. Ops become tokens; within a cell (one rank, one step) tokens that
// differ only in tensors with a joint name, or only in the peer of a send, are joined; cells are
// wrapped into lines, and rows are padded to the widths of the columns. Nothing here trusts an
// index of a program.
#include "armillary/plan/program/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace armillary::plan {
namespace {

/// A view as printed: the name of a tensor, or of two that are printed as one, and the part shown.
struct Noun {
  std::string name;
  std::string part;  ///< Blocks and heads.
  bool operator==(const Noun&) const = default;
};

/// One word of the grid, of one op or of several that are printed as one.
struct Token {
  const KindWord* word = nullptr;
  Kind kind{};
  Lane lane = kCompute;
  Noun noun;
  std::vector<Rank> peers;  ///< All ranks of the group of a joint op.
  std::string other_side;   ///< Operands that are read on another side than the first.
  std::string mark;         ///< Which accumulators it initialises.
  std::vector<int> ops;     ///< Indices in the rank's ops.
};

/// Formats numbers as `7`, `{0,4-7}` or `{}`.
template <class Numbers>
std::string list(const Numbers& numbers) {
  if (numbers.size() == 1) return std::to_string(numbers[0]);
  // Three or more consecutive numbers print as a range.
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == std::int64_t{numbers[last]} + 1) {
      ++last;
    }
    if (last - i < 2) last = i;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return "{" + text + "}";
}

/// True if two tokens do the same in the same lane, so that one word may stand for both.
bool same_verb(const Token& a, const Token& b) {
  return a.kind == b.kind && a.lane == b.lane;
}

/// Makes the tokens of the ops of one rank.
class Tokens {
 public:
  Tokens(const World& world, Rank rank)
      : measures_(world.measures),
        program_(world.ranks[static_cast<std::size_t>(rank)]),
        words_(*program_.words) {}

  /// The token of one op; its noun is `?` if the op has a wrong number of views.
  Token token(const Op& op, int index) const {
    Token token{.word = &words_[op.kind],
                .kind = op.kind,
                .lane = op.lane,
                .noun = {"?", ""},
                .peers = {},
                .other_side = {},
                .mark = {},
                .ops = {index}};
    if (op.is_comm()) token.peers = {op.peer};
    const bool has_group = op.peer >= 0 && op.peer < static_cast<int>(program_.groups.size());
    if (token.word->joint && has_group) token.peers = program_.groups[op.peer];
    if (!words_.takes(op.kind, op.views.size())) return token;
    // The first operand names the token: the queries of an op that attends, otherwise the tile that
    // is sent or written.
    token.noun = noun(op.views.front());
    if (op.is_comm()) {
      for (std::size_t v = 1; v < op.views.size(); ++v) add_part(token.noun, noun(op.views[v]));
      return token;
    }
    token.other_side = other_side(op);
    token.mark = mark(op);
    if (token.other_side.empty()) join_results(op, token.noun);
    return token;
  }

  /// Makes `next` a part of `token` if both have a joint name: sends of K and of V, clears of o.
  bool absorb(Token& token, const Token& next) const {
    const std::string both = join(token.noun, next.noun);
    if (!same_verb(token, next) || token.peers != next.peers || both.empty()) return false;
    token.noun.name = both;
    token.ops.insert(token.ops.end(), next.ops.begin(), next.ops.end());
    return true;
  }

 private:
  /// The printed form of a view; `?` if its tile does not exist.
  Noun noun(const View& view) const {
    if (view.tile < 0 || view.tile >= static_cast<int>(program_.tiles.size())) return {"?", ""};
    const Tile& tile = program_.tiles[static_cast<std::size_t>(view.tile)];
    const TensorWord& tensor = words_[tile.tensor];
    const bool partial = tile.partial && !tensor.partial_name.empty();
    std::string name(partial ? tensor.partial_name : tensor.name);
    // Heads are printed only if they are not all heads of the tensor.
    std::string part = list(std::vector<int>(view.blocks.begin(), view.blocks.end()));
    if (view.heads != Heads{0, measures_[tile.tensor].heads}) {
      part += fmt::format("[{}:{}]", view.heads.begin, view.heads.end);
    }
    return {std::move(name), std::move(part)};
  }

  /// The joint name of two nouns of the same part, or an empty text.
  std::string join(const Noun& a, const Noun& b) const {
    for (const JointName& pair : words_.joint_names) {
      if (a.part == b.part && a.name == pair.first && b.name == pair.second) {
        return std::string(pair.both);
      }
    }
    return "";
  }

  /// Adds another view of the same message: `q0+kv0`.
  void add_part(Noun& noun, const Noun& part) const {
    const std::string both = join(noun, part);
    if (!both.empty()) {
      noun.name = both;
    } else {
      noun = {noun.name + noun.part + "+" + part.name + part.part, ""};
    }
  }

  /// The operands that are read on another side than the first: one noun if they show the same
  /// part, as they should.
  std::string other_side(const Op& op) const {
    const std::span<const Operand> operands = words_[op.kind].operands;
    std::vector<Noun> nouns;
    for (std::size_t v = 1; v < operands.size(); ++v) {
      if (!operands[v].tensor || !operands[0].tensor || operands[v].access != Access::Read)
        continue;
      if (words_[*operands[v].tensor].side == words_[*operands[0].tensor].side) continue;
      nouns.push_back(noun(op.views[v]));
    }
    if (nouns.size() == 2) {
      const std::string both = join(nouns[0], nouns[1]);
      if (!both.empty()) return both + nouns[0].part;
    }
    std::string text;
    for (const Noun& one : nouns) text += (text.empty() ? "" : ",") + one.name + one.part;
    return nouns.size() > 1 ? "(" + text + ")" : text;
  }

  /// `:init` if all accumulators are initialised that may be, `:init_q` for those of one side.
  std::string mark(const Op& op) const {
    unsigned begun = 0;
    for (std::size_t side = 0; side < kMostSides; ++side) begun |= op.init[side] ? 1U << side : 0;
    const unsigned all = words_[op.kind].begins;
    if (begun == 0 || words_.sides.empty()) return "";
    if ((begun & all) == all && all != 0) return ":init";
    return fmt::format(":init_{}", words_.sides[op.init[0] ? 0 : words_.sides.size() - 1].name);
  }

  /// Two results that have a joint name: merge and finish of o.
  void join_results(const Op& op, Noun& first) const {
    if (op.views.size() < 2 || !words_.writes(op, 0) || !words_.writes(op, 1)) return;
    const std::string both = join(first, noun(op.views[1]));
    if (!both.empty()) first.name = both;
  }

  const Measures& measures_;
  const RankProgram& program_;
  const Vocabulary& words_;
};

/// Makes `next` a part of `token` if it is a send of the same part to another peer.
bool spread(Token& token, const Token& next) {
  if (!same_verb(token, next) || token.kind != kSend || token.noun != next.noun) return false;
  token.peers.insert(token.peers.end(), next.peers.begin(), next.peers.end());
  token.ops.insert(token.ops.end(), next.ops.begin(), next.ops.end());
  return true;
}

/// Tokens in order, each joined into the first earlier one that takes it.
template <class Joins>
std::vector<Token> joined(const std::vector<Token>& tokens, Joins joins) {
  std::vector<Token> result;
  for (const Token& token : tokens) {
    const auto into = std::find_if(result.begin(), result.end(),
                                   [&](Token& earlier) { return joins(earlier, token); });
    if (into == result.end()) result.push_back(token);
  }
  return result;
}

/// All tokens of a cell, joined.
std::vector<Token> joined_all(const Tokens& of_rank, const std::vector<Token>& tokens) {
  return joined(joined(tokens, [&](Token& a, const Token& b) { return of_rank.absorb(a, b); }),
                spread);
}

/// The word of a token, as grid.h shows it.
std::string print(const Token& token) {
  const std::string what = token.noun.name + token.noun.part;
  if (token.kind == kSend) return fmt::format("{}>r{}", what, list(token.peers));
  if (token.kind == kRecv) return fmt::format("{}<r{}", what, list(token.peers));
  if (token.word->form.empty()) return fmt::format("{}({})", token.word->name, what);
  std::string text;
  for (const char letter : token.word->form) {
    switch (letter) {
      case '%':
        text += what;
        break;
      case '&':
        text += token.other_side;
        break;
      case '!':
        text += token.mark;
        break;
      case '@':
        text += "r" + list(token.peers);
        break;
      default:
        text += letter;
    }
  }
  return text;
}

/// The tokens of one rank and step, broken into lines.
struct StepCell {
  std::vector<Token> tokens;
  std::vector<std::string> lines;
  std::vector<std::vector<int>> ops;  ///< By line: the ops on it, to find the place of a mark.
};

/// Fills lines up to `width`; a longer token has a line of its own.
void wrap(StepCell& cell, std::size_t width) {
  for (const Token& token : cell.tokens) {
    const std::string word = print(token);
    if (cell.lines.empty() || cell.lines.back().size() + 1 + word.size() > width) {
      cell.lines.push_back(word);
      cell.ops.push_back(token.ops);
    } else {
      cell.lines.back() += " " + word;
      cell.ops.back().insert(cell.ops.back().end(), token.ops.begin(), token.ops.end());
    }
  }
}

using Row = std::vector<StepCell>;  // A cell per rank.

/// The rows by step, with tokens joined and lines wrapped.
std::map<int, Row> rows_of(const World& world, std::size_t width) {
  std::map<int, Row> rows;
  const std::size_t ranks = world.ranks.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    const Tokens tokens(world, static_cast<Rank>(r));
    std::map<int, std::vector<Token>> steps;
    const std::vector<Op>& ops = world.ranks[r].ops;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      steps[ops[i].step].push_back(tokens.token(ops[i], static_cast<int>(i)));
    }
    for (const auto& [step, of_step] : steps) {
      StepCell& cell = rows.try_emplace(step, ranks).first->second[r];
      cell.tokens = joined_all(tokens, of_step);
      wrap(cell, width);
    }
  }
  return rows;
}

std::string trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

/// The mark of a diagnostic, with the rank if it has one.
std::string arrow(const Diagnostic& at) {
  if (at.rank < 0) return fmt::format("   <-- HERE {}", at.text);
  return fmt::format("   <-- HERE rank {}: {}", at.rank, at.text);
}

/// Line `index` of a row, padded to the widths of the columns.
std::string line_of(const Row& row, std::size_t index, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t r = 0; r < row.size(); ++r) {
    const std::vector<std::string>& lines = row[r].lines;
    std::string text = index < lines.size() ? lines[index] : "";
    if (lines.empty() && index == 0) text = ".";
    line += fmt::format("{:<{}}", text, widths[r]);
  }
  return line;
}

/// True if the op of the diagnostic is on line `index` of its rank in this row.
bool marks(const Row& row, std::size_t index, const Diagnostic* at) {
  if (at == nullptr || at->rank < 0 || at->rank >= static_cast<int>(row.size())) return false;
  const StepCell& cell = row[static_cast<std::size_t>(at->rank)];
  return index < cell.ops.size() &&
         std::find(cell.ops[index].begin(), cell.ops[index].end(), at->op) != cell.ops[index].end();
}

/// The width of every rank's column: its longest line and a gap.
std::vector<std::size_t> widths_of(const World& world, const std::map<int, Row>& rows) {
  constexpr std::size_t kGap = 3;
  std::vector<std::size_t> widths;
  for (std::size_t r = 0; r < world.ranks.size(); ++r) {
    std::size_t width = fmt::format("rank {}", r).size();
    for (const auto& [step, row] : rows) {
      for (const std::string& line : row[r].lines) width = std::max(width, line.size());
    }
    widths.push_back(width + kGap);
  }
  return widths;
}

}  // namespace

std::vector<GridWord> grid_words(const World& world, Rank rank) {
  const Tokens of_rank(world, rank);
  std::map<int, std::vector<Token>> steps;
  const std::vector<Op>& ops = world.ranks[static_cast<std::size_t>(rank)].ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    steps[ops[i].step].push_back(of_rank.token(ops[i], static_cast<int>(i)));
  }
  std::vector<GridWord> words;
  for (const auto& [step, tokens] : steps) {
    for (Token& token : joined_all(of_rank, tokens)) {
      std::sort(token.ops.begin(), token.ops.end());
      words.push_back({.step = step, .text = print(token), .ops = std::move(token.ops)});
    }
  }
  return words;
}

std::string to_string(const World& world, Rank rank, const Op& op) {
  return print(Tokens(world, rank).token(op, 0));
}

std::string to_string(const World& world, const Diagnostic* at) {
  constexpr std::size_t kLineWidth = 141;
  const std::size_t column = kLineWidth / std::max<std::size_t>(world.ranks.size(), 1);
  const std::map<int, Row> rows = rows_of(world, std::clamp<std::size_t>(column, 24, 48));
  const std::vector<std::size_t> widths = widths_of(world, rows);
  constexpr std::size_t kLabelWidth = 10;

  // The head line.
  std::string text(kLabelWidth, ' ');
  for (std::size_t r = 0; r < world.ranks.size(); ++r) {
    text += fmt::format("{:<{}}", fmt::format("rank {}", r), widths[r]);
  }
  text = trimmed(text) + "\n";
  // The rows, each as high as its highest cell.
  bool marked = false;
  for (const auto& [step, row] : rows) {
    std::size_t height = 1;
    for (const StepCell& cell : row) height = std::max(height, cell.lines.size());
    for (std::size_t i = 0; i < height; ++i) {
      const std::string label = i == 0 ? fmt::format("step {}", step) : "";
      std::string line =
          trimmed(fmt::format("{:<{}}", label, kLabelWidth) + line_of(row, i, widths));
      if (marks(row, i, at)) {
        line += arrow(*at);
        marked = true;
      }
      text += line + "\n";
    }
  }
  // A diagnostic without an op, or of an op that is not there.
  if (at != nullptr && !marked) text += "end" + arrow(*at) + "\n";
  return text;
}

}  // namespace armillary::plan
