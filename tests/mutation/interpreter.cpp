// interpreter.cpp: a second, slow reading of plans, by which mutants are judged: ops run in any
// order that the messages allow, on lists of terms in the place of tensors. It shares no code with
// verify.
#include "tests/mutation/interpreter.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "armillary/plan/operands.h"

namespace armillary::mutation {

using plan::Access;
using plan::Op;
using plan::OpKind;
using plan::Plan;
using plan::RankProgram;
using plan::Tile;
using plan::View;

namespace {

/// sees[query block][key block], token by token.
std::vector<std::vector<bool>> block_pairs(const Plan& plan) {
  std::vector<std::vector<bool>> sees;
  for (const plan::Block& q_block : plan.blocks.q) {
    sees.emplace_back();
    for (const plan::Block& kv_block : plan.blocks.kv) {
      bool any = false;
      for (const std::int64_t q : positions(q_block.runs)) {
        for (const std::int64_t k : positions(kv_block.runs)) {
          any = any || plan.problem.mask.visible(q, k);
        }
      }
      sees.back().push_back(any);
    }
  }
  return sees;
}

using Cells = std::map<std::pair<int, int>, Terms>;  // By block and head.

/// Contents of a slot.
struct Content {
  int tile = -1;
  Cells cells;
};

class NotThere {};

constexpr int kRounded = 1;  ///< The bit of a term; the others say which it is.

class Interpreter {
 public:
  explicit Interpreter(const Plan& plan) : plan_(plan), sees_(block_pairs(plan)) {
    for (const RankProgram& program : plan.ranks) {
      ranks_.emplace_back();
      InterpretedRank& rank = ranks_.back();
      rank.slots.resize(program.slots.size());
      for (const int tile : program.inputs) define(rank, program, tile);
      if (plan.pass == plan::Pass::Backward) {
        for (const int tile : program.saved) define(rank, program, tile);
      }
      sort_ops(rank, program);
    }
    match();
  }

  void play() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        for (auto& [lane, batches] : ranks_[r].lanes) {
          while (!batches.empty() && advance(static_cast<int>(r), batches)) moved = true;
        }
      }
    }
  }

  Interpretation results() const {
    Interpretation results;
    results.finished = rests();
    results.sinks = sinks_;
    std::sort(results.sinks.begin(), results.sinks.end());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const RankProgram& program = plan_.ranks[r];
      results.finished = results.finished && ranks_[r].complete.size() == program.ops.size();
      std::vector<int> tiles = program.outputs;
      if (plan_.pass != plan::Pass::Backward) {
        tiles.insert(tiles.end(), program.saved.begin(), program.saved.end());
      }
      for (std::size_t i = 0; i < tiles.size() && results.finished; ++i) {
        const Tile& tile = program.tiles[tiles[i]];
        if (borrowed_.contains({static_cast<int>(r), tiles[i]})) throw NotThere{};
        for (auto& [cell, terms] : read(r, {tiles[i], tile.heads, tile.blocks})) {
          std::sort(terms.begin(), terms.end());
          results.cells[{r, i, cell.first, cell.second}] = terms;
        }
      }
    }
    return results;
  }

 private:
  struct Lent {
    int rank;
    View view;
    Cells cells;
  };
  struct InterpretedRank {
    std::vector<Content> slots;
    std::vector<std::vector<int>> waits;  ///< By op: the earlier ops it conflicts with.
    std::map<plan::Lane, std::deque<std::vector<int>>> lanes;  ///< Batches that are not done.
    std::set<int> started, moved, complete;
  };

  static void define(InterpretedRank& rank, const RankProgram& program, int tile) {
    const Tile& whole = program.tiles[tile];
    Content& content = rank.slots[whole.slot];
    content.tile = tile;
    for (const int block : whole.blocks) {
      for (int head = whole.heads.begin; head < whole.heads.end; ++head) {
        content.cells[{block, head}] = {};
      }
    }
  }

  static void sort_ops(InterpretedRank& rank, const RankProgram& program) {
    struct ViewUse {
      int op;
      const View* view;
      bool writes;
    };
    std::vector<std::vector<ViewUse>> history(program.slots.size());
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      const Op& op = program.ops[i];
      rank.waits.emplace_back();
      for (std::size_t v = 0; v < op.views.size(); ++v) {
        const bool written = plan::writes(op, v);
        std::vector<ViewUse>& before = history[program.tiles[op.views[v].tile].slot];
        for (const ViewUse& old : before) {
          if (old.op != i && (old.writes || written) && touch(program, *old.view, op.views[v])) {
            rank.waits.back().push_back(old.op);
          }
        }
        before.push_back({i, &op.views[v], written});
      }
      auto& batches = rank.lanes[op.lane];
      const bool joins =
          !batches.empty() && op.is_comm() && program.ops[batches.back().back()].step == op.step;
      if (!joins) batches.emplace_back();
      batches.back().push_back(i);
    }
  }

  /// The n-th send of a lane to a rank meets its n-th receive.
  void match() {
    std::map<std::tuple<int, int, int>, std::pair<std::vector<int>, std::vector<int>>> queues;
    for (const RankProgram& program : plan_.ranks) {
      for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
        const Op& op = program.ops[i];
        if (op.kind == OpKind::Send) queues[{op.lane, program.rank, op.peer}].first.push_back(i);
        if (op.kind == OpKind::Recv) queues[{op.lane, op.peer, program.rank}].second.push_back(i);
      }
    }
    for (const auto& [key, queue] : queues) {
      const auto [lane, from, to] = key;
      for (std::size_t n = 0; n < std::min(queue.first.size(), queue.second.size()); ++n) {
        partners_[{from, queue.first[n]}] = {to, queue.second[n]};
        partners_[{to, queue.second[n]}] = {from, queue.first[n]};
      }
    }
  }

  /// Starts the first batch or finishes it; false if it has to wait.
  bool advance(int r, std::deque<std::vector<int>>& batches) {
    InterpretedRank& rank = ranks_[r];
    const std::vector<int>& batch = batches.front();
    if (rank.started.count(batch.front()) == 0) {
      for (const int i : batch) {
        for (const int earlier : rank.waits[i]) {
          if (rank.complete.count(earlier) == 0) return false;
        }
      }
      rank.started.insert(batch.begin(), batch.end());
      for (const int i : batch) start(r, i);
      return true;
    }
    const auto has_moved = [&](int i) { return rank.moved.count(i) > 0; };
    if (!std::all_of(batch.begin(), batch.end(), has_moved)) return false;
    rank.complete.insert(batch.begin(), batch.end());
    batches.pop_front();
    return true;
  }

  void start(int r, int i) {
    const Op& op = plan_.ranks[r].ops[i];
    if (!op.is_comm()) {
      compute(r, op);
      ranks_[r].moved.insert(i);
      return;
    }
    const auto partner = partners_.find({r, i});
    if (partner == partners_.end()) return;
    const auto [other, j] = partner->second;
    if (ranks_[other].started.count(j) == 0) return;
    const bool sends = op.kind == OpKind::Send;
    const plan::Views& sources = plan_.ranks[sends ? r : other].ops[sends ? i : j].views;
    const plan::Views& targets = plan_.ranks[sends ? other : r].ops[sends ? j : i].views;
    if (sources.size() != targets.size()) throw NotThere{};
    for (std::size_t v = 0; v < sources.size(); ++v) {
      write(sends ? other : r, targets[v], read(sends ? r : other, sources[v]));
    }
    const auto [s, t] = sends ? std::pair(i, j) : std::pair(j, i);
    zero_copy(sends ? r : other, s, sends ? other : r, t);
    ranks_[r].moved.insert(i);
    ranks_[other].moved.insert(j);
  }

  /// A zero-copy message is read in the memory of the sender, at any time until the end of the run.
  void zero_copy(int from, int send, int to, int recv) {
    const Op& lent = plan_.ranks[from].ops[send];
    const Op& borrowed = plan_.ranks[to].ops[recv];
    if (!lent.zero_copy || !borrowed.zero_copy) return;
    lent_.push_back({from, lent.views[0], read(from, lent.views[0])});
    borrowed_.insert({to, borrowed.views[0].tile});
  }

  /// Whether every tile that was lent still has its contents.
  bool rests() const {
    return std::all_of(lent_.begin(), lent_.end(), [&](const Lent& zero_copy) {
      return read(zero_copy.rank, zero_copy.view) == zero_copy.cells;
    });
  }

  Cells read(std::size_t r, const View& view) const {
    const Content& content = ranks_[r].slots[plan_.ranks[r].tiles[view.tile].slot];
    Cells cells;
    for (const int block : view.blocks) {
      for (int head = view.heads.begin; head < view.heads.end; ++head) {
        const auto cell = content.cells.find({block, head});
        if (content.tile != view.tile || cell == content.cells.end()) throw NotThere{};
        cells.insert(*cell);
      }
    }
    return cells;
  }

  void write(std::size_t r, const View& view, Cells cells) {
    if (borrowed_.count({static_cast<int>(r), view.tile}) > 0) throw NotThere{};
    Content& content = ranks_[r].slots[plan_.ranks[r].tiles[view.tile].slot];
    if (plan_.ranks[r].tiles[view.tile].narrow) {
      for (auto& [cell, terms] : cells) {
        for (int& term : terms) term |= kRounded;
      }
    }
    if (content.tile != view.tile) content = {view.tile, {}};
    cells.merge(content.cells);  // Cells that were just written win.
    content.cells = std::move(cells);
  }

  static void append(Cells& cells, const Cells& more) {
    for (auto& [cell, terms] : cells) {
      const Terms& added = more.at(cell);
      terms.insert(terms.end(), added.begin(), added.end());
    }
  }

  void attend(int r, const Op& op, std::size_t first_sum) {
    for (std::size_t v = 0; v < first_sum; ++v) read(r, op.views[v]);
    for (std::size_t v = first_sum; v < op.views.size(); ++v) {
      if (access(op, v) == Access::Write) clear(r, op.views[v]);
      const bool kv = is_kv(plan_.ranks[r].tiles[op.views[v].tile].tensor);
      Cells sums = read(r, op.views[v]);
      for (const int q : op.views[0].blocks) {
        for (const int k : op.views[1].blocks) {
          if (!sees_[q][k]) continue;
          for (int h = op.views[0].heads.begin; h < op.views[0].heads.end; ++h) {
            const int kv_head = h / plan_.problem.group_size();
            const int term =
                (q * static_cast<int>(plan_.blocks.kv.size()) + k) * plan_.problem.heads + h;
            sums.at(kv ? std::pair(k, kv_head) : std::pair(q, h)).push_back(2 * term);
          }
        }
      }
      write(r, op.views[v], std::move(sums));
    }
  }

  void sum(int r, const View& into, const View& part) {
    Cells cells = read(r, into);
    append(cells, read(r, part));
    write(r, into, std::move(cells));
  }

  void compute(int r, const Op& op) {
    const plan::Views& views = op.views;
    switch (plan::OpKind(op.kind)) {
      case OpKind::Attend:
      case OpKind::AttendAll:
        return attend(r, op, 3);
      case OpKind::AttendGrad:
      case OpKind::AttendGradAll:
        return attend(r, op, 6);
      case OpKind::Merge:
        sum(r, views[0], views[2]);
        return sum(r, views[1], views[3]);
      case OpKind::Add:
        return sum(r, views[0], views[1]);
      case OpKind::Copy:
        return write(r, views[0], read(r, views[1]));
      case OpKind::Finish: {
        Cells out = read(r, views[2]);
        Cells lse = read(r, views[3]);
        write(r, views[0], std::move(out));
        return write(r, views[1], std::move(lse));
      }
      case OpKind::Delta:
        read(r, views[1]);
        read(r, views[3]);
        for (const auto& [cell, terms] : read(r, views[2])) {
          sinks_.push_back(cell.first * plan_.problem.heads + cell.second);
        }
        return write(r, views[0], read(r, views[2]));
      case OpKind::Clear:
        return clear(r, views[0]);
      case OpKind::Send:
      case OpKind::Recv:
        return;
    }
  }

  void clear(int r, const View& view) {
    Cells cells;
    for (const int block : view.blocks) {
      for (int head = view.heads.begin; head < view.heads.end; ++head) cells[{block, head}] = {};
    }
    write(r, view, std::move(cells));
  }

  const Plan& plan_;
  std::vector<std::vector<bool>> sees_;
  std::vector<InterpretedRank> ranks_;
  Terms sinks_;
  std::vector<Lent> lent_;
  std::set<std::pair<int, int>> borrowed_;  ///< (rank, tile): the memory of another rank.
  std::map<std::pair<int, int>, std::pair<int, int>> partners_;  ///< (rank, op) at the other end.
};

}  // namespace

bool touch(const RankProgram& program, const View& a, const View& b) {
  if (a.tile != b.tile) return program.tiles[a.tile].slot == program.tiles[b.tile].slot;
  const bool heads = a.heads.begin < b.heads.end && b.heads.begin < a.heads.end;
  return heads && std::find_first_of(a.blocks.begin(), a.blocks.end(), b.blocks.begin(),
                                     b.blocks.end()) != a.blocks.end();
}

bool equal_but_for_rounding(const Interpretation& a, const Interpretation& b) {
  const auto exact = [](Interpretation interpretation) {
    for (auto& [cell, terms] : interpretation.cells) {
      for (int& term : terms) term &= ~kRounded;
      std::sort(terms.begin(), terms.end());
    }
    return interpretation;
  };
  return exact(a) == exact(b);
}

Interpretation interpret(const Plan& plan) {
  try {
    Interpreter player(plan);
    player.play();
    return player.results();
  } catch (const NotThere&) {
    return {};
  }
}

}  // namespace armillary::mutation
