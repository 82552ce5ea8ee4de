// Prints plans as a grid. Ops become tokens; within a cell (one rank, one step) tokens that differ
// only in K and V, or only in the peer of a send, are joined; cells are wrapped into lines, and
// rows are padded to the widths of the columns. Nothing here trusts an index of the plan.
#include "armillary/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "armillary/plan/operands.h"

namespace armillary::plan {
namespace {

/// A view as printed: the name of a tensor, or of two that are printed as one, and the part shown.
struct Noun {
  std::string name;
  std::string part;  ///< Blocks and heads.
  bool operator==(const Noun&) const = default;
};

/// Two names that are printed as one if they stand for the same part.
struct JointName {
  std::string_view first, second, both;
};
constexpr std::array<JointName, 3> kJointNames{
    {{"k", "v", "kv"}, {"dk", "dv", "dkv"}, {"po", "plse", "o"}}};

/// One word of the grid, of one op or of several that are printed as one.
struct Token {
  OpKind kind = OpKind::Send;
  Lane lane = kCompute;
  Noun noun;
  std::vector<Rank> peers;
  std::string attended;  ///< Ops that attend: the key side.
  std::string mark;      ///< Ops that attend: which accumulators they initialise.
  std::vector<int> ops;  ///< Indices in the rank's ops.
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

/// The printed form of a view; `?` if its tile does not exist.
Noun noun(const Plan& plan, Rank rank, const View& view) {
  const std::vector<Tile>& tiles = plan.ranks[static_cast<std::size_t>(rank)].tiles;
  if (view.tile < 0 || view.tile >= static_cast<int>(tiles.size())) return {"?", ""};
  const Tile& tile = tiles[static_cast<std::size_t>(view.tile)];
  std::string name(to_string(tile.tensor));
  if (tile.partial && tile.tensor == Tensor::Out) name = "po";
  if (tile.partial && tile.tensor == Tensor::Lse) name = "plse";
  // Heads are printed only if they are not all heads of the tensor.
  const int heads = is_kv(tile.tensor) ? plan.problem.kv_heads : plan.problem.heads;
  std::string part = list(std::vector<int>(view.blocks.begin(), view.blocks.end()));
  if (view.heads != Heads{0, heads}) {
    part += fmt::format("[{}:{}]", view.heads.begin, view.heads.end);
  }
  return {std::move(name), std::move(part)};
}

/// The joint name of two nouns of the same part, or an empty text.
std::string join(const Noun& a, const Noun& b) {
  for (const JointName& pair : kJointNames) {
    if (a.part == b.part && a.name == pair.first && b.name == pair.second) {
      return std::string(pair.both);
    }
  }
  return "";
}

/// Adds another view of the same message: `q0+kv0`.
void add_part(Noun& noun, const Noun& part) {
  const std::string both = join(noun, part);
  if (!both.empty()) {
    noun.name = both;
  } else {
    noun = {noun.name + noun.part + "+" + part.name + part.part, ""};
  }
}

/// The key side of an op that attends: one noun if k and v show the same part, as they should.
std::string key_side(const Noun& k, const Noun& v) {
  const std::string both = join(k, v);
  if (!both.empty()) return both + k.part;
  return fmt::format("({}{},{}{})", k.name, k.part, v.name, v.part);
}

/// The token of one op; its noun is `?` if the op has a wrong number of views.
Token token(const Plan& plan, Rank rank, const Op& op, int index) {
  Token token;
  token.kind = op.kind;
  token.lane = op.lane;
  token.noun = {"?", ""};
  token.ops = {index};
  if (op.is_comm()) token.peers = {op.peer};
  const auto noun_of = [&](std::size_t operand) { return noun(plan, rank, op.views[operand]); };
  if (!takes(op.kind, op.views.size())) return token;
  // The first operand names the token: the queries of an op that attends, otherwise the tile that
  // is sent or written.
  token.noun = noun(plan, rank, op.views.front());
  if (op.is_comm()) {
    for (std::size_t v = 1; v < op.views.size(); ++v) add_part(token.noun, noun_of(v));
  } else if (op.attends() || op.attends_grad()) {
    token.attended = key_side(noun_of(QkvOperand::kK), noun_of(QkvOperand::kV));
    if (op.init_q || op.init_kv) {
      token.mark = op.init_q && (op.init_kv || op.attends()) ? ":init"
                   : op.init_q                               ? ":init_q"
                                                             : ":init_kv";
    }
  } else if (op.kind == OpKind::Merge || op.kind == OpKind::Finish) {
    const std::string both = join(noun_of(MergeOperand::kOut), noun_of(MergeOperand::kLse));
    if (!both.empty()) token.noun.name = both;
  }
  return token;
}

/// True if two tokens do the same in the same lane, so that one word may stand for both.
bool same_verb(const Token& a, const Token& b) {
  return a.kind == b.kind && a.lane == b.lane;
}

/// Makes `next` a part of `token` if both have a joint name: sends of K and of V, clears of o.
bool absorb(Token& token, const Token& next) {
  const std::string both = join(token.noun, next.noun);
  if (!same_verb(token, next) || token.peers != next.peers || both.empty()) return false;
  token.noun.name = both;
  token.ops.insert(token.ops.end(), next.ops.begin(), next.ops.end());
  return true;
}

/// Makes `next` a part of `token` if it is a send of the same part to another peer.
bool spread(Token& token, const Token& next) {
  if (!same_verb(token, next) || token.kind != OpKind::Send || token.noun != next.noun)
    return false;
  token.peers.insert(token.peers.end(), next.peers.begin(), next.peers.end());
  token.ops.insert(token.ops.end(), next.ops.begin(), next.ops.end());
  return true;
}

/// Tokens in order, each joined into the first earlier one that takes it.
template <class Joins>
std::vector<Token> joined(const std::vector<Token>& tokens, Joins joins) {
  std::vector<Token> kept;
  for (const Token& token : tokens) {
    const auto into = std::find_if(kept.begin(), kept.end(),
                                   [&](Token& earlier) { return joins(earlier, token); });
    if (into == kept.end()) kept.push_back(token);
  }
  return kept;
}

/// The word of a token, as the table in text.h shows it.
std::string print(const Token& token) {
  const std::string what = token.noun.name + token.noun.part;
  switch (token.kind) {
    case OpKind::Send:
      return fmt::format("{}>r{}", what, list(token.peers));
    case OpKind::Recv:
      return fmt::format("{}<r{}", what, list(token.peers));
    case OpKind::Attend:
      return fmt::format("{}*{}{}", what, token.attended, token.mark);
    case OpKind::AttendAll:
      return fmt::format("{}*{}:all", what, token.attended);
    case OpKind::AttendGrad:
      return fmt::format("grad({}*{}){}", what, token.attended, token.mark);
    case OpKind::AttendGradAll:
      return fmt::format("grad({}*{}):all", what, token.attended);
    case OpKind::Delta:
      return token.noun.name + token.noun.part;
    default:
      return fmt::format("{}({})", to_string(token.kind), what);
  }
}

/// The tokens of one rank and step, broken into lines.
struct Cell {
  std::vector<Token> tokens;
  std::vector<std::string> lines;
  std::vector<std::vector<int>> ops;  ///< By line: the ops on it, to find the place of a mark.
};

/// Fills lines up to `width`; a longer token has a line of its own.
void wrap(Cell& cell, std::size_t width) {
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

using Row = std::vector<Cell>;  // A cell per rank.

/// The rows by step, with tokens joined and lines wrapped.
std::map<int, Row> rows_of(const Plan& plan, std::size_t width) {
  std::map<int, Row> rows;
  const std::size_t ranks = plan.ranks.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::vector<Op>& ops = plan.ranks[r].ops;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      Row& row = rows.try_emplace(ops[i].step, ranks).first->second;
      row[r].tokens.push_back(token(plan, static_cast<Rank>(r), ops[i], static_cast<int>(i)));
    }
  }
  for (auto& [step, row] : rows) {
    for (Cell& cell : row) {
      cell.tokens = joined(joined(cell.tokens, absorb), spread);
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
  const Cell& cell = row[static_cast<std::size_t>(at->rank)];
  return index < cell.ops.size() &&
         std::find(cell.ops[index].begin(), cell.ops[index].end(), at->op) != cell.ops[index].end();
}

/// The width of every rank's column: its longest line and a gap.
std::vector<std::size_t> widths_of(const Plan& plan, const std::map<int, Row>& rows) {
  constexpr std::size_t kGap = 3;
  std::vector<std::size_t> widths;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    std::size_t width = fmt::format("rank {}", r).size();
    for (const auto& [step, row] : rows) {
      for (const std::string& line : row[r].lines) width = std::max(width, line.size());
    }
    widths.push_back(width + kGap);
  }
  return widths;
}

}  // namespace

std::vector<GridWord> grid_words(const Plan& plan, Rank rank) {
  std::map<int, std::vector<Token>> steps;
  const std::vector<Op>& ops = plan.ranks[static_cast<std::size_t>(rank)].ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    steps[ops[i].step].push_back(token(plan, rank, ops[i], static_cast<int>(i)));
  }
  std::vector<GridWord> words;
  for (const auto& [step, tokens] : steps) {
    for (Token& token : joined(joined(tokens, absorb), spread)) {
      std::sort(token.ops.begin(), token.ops.end());
      words.push_back({.step = step, .text = print(token), .ops = std::move(token.ops)});
    }
  }
  return words;
}

std::string to_string(const Plan& plan, Rank rank, const Op& op) {
  return print(token(plan, rank, op, 0));
}

std::string to_string(const Plan& plan, const Diagnostic* at) {
  constexpr std::size_t kLineWidth = 141;
  const std::size_t column = kLineWidth / std::max<std::size_t>(plan.ranks.size(), 1);
  const std::map<int, Row> rows = rows_of(plan, std::clamp<std::size_t>(column, 24, 48));
  const std::vector<std::size_t> widths = widths_of(plan, rows);
  constexpr std::size_t kLabelWidth = 10;

  // The head line.
  std::string text(kLabelWidth, ' ');
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    text += fmt::format("{:<{}}", fmt::format("rank {}", r), widths[r]);
  }
  text = trimmed(text) + "\n";
  // The rows, each as high as its highest cell.
  bool marked = false;
  for (const auto& [step, row] : rows) {
    std::size_t height = 1;
    for (const Cell& cell : row) height = std::max(height, cell.lines.size());
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
