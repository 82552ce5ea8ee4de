// Runs a plan on symbols instead of numbers. Blocks that all views of the plan treat alike form a
// class, and so do heads. A cell is one class of blocks and one class of heads of a tile: it knows
// whether it has been written and, in a partial tile, the set of classes of the other side that its
// sum is over (symbols.h).
//
// Contents begin with the tiles that the caller fills. A message copies the cells of its views, and
// each kind of compute op has a method that checks the operands and changes the cells that the op
// writes. check_results() looks at the outputs. A method stops at its first diagnostic; operands
// are addressed by the names of operands.h.
#include "armillary/plan/verify/symbols.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "armillary/plan/operands.h"
#include "armillary/plan/verify/contents.h"
#include "armillary/plan/verify/programs.h"

namespace armillary::plan::verifier {
namespace {

/// Runs ops on contents. Several threads may do so, each on ranks of its own.
class Symbols {
 public:
  Symbols(const Meaning& meaning, Contents& contents, Diagnostics& diagnostics)
      : plan_(meaning.plan),
        diagnostics_(diagnostics),
        sides_(meaning.sides),
        sight_(meaning.sight),
        rotation_(meaning.rotation),
        passed_delta_(contents.passed_delta),
        cells_(contents.cells) {}

  void run(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (diagnostics_.full()) return;
      run(action);
    }
  }

  void run(const Action& action) {
    if (action.is_message()) {
      deliver({action.from, action.send}, {action.rank, action.op});
    } else {
      compute(action.rank, action.op);
    }
  }

  /// A message in two parts, for ranks that run by themselves. False if a rule is broken.
  bool send(Rank rank, int op, Parcel& parcel) {
    const OpPlace at{rank, op};
    for (std::size_t v = 0; v < program(at).ops[op].views.size(); ++v) {
      if (!is_there(at, v)) return false;
      if (tile(at, v).partial) parcel.push_back(cells_[rank].read(view(at, v)).sums());
    }
    return true;
  }
  void receive(Rank rank, int op, Parcel& parcel) {
    const OpPlace at{rank, op};
    auto sums = parcel.begin();
    for (std::size_t v = 0; v < program(at).ops[op].views.size(); ++v) {
      const ViewCells target = cells_[rank].write(view(at, v));
      if (tile(at, v).partial) {
        target.take(std::move(*sums++));
      } else {
        target.define();
      }
    }
  }

  void compute(Rank rank, int op) {
    const OpPlace at{rank, op};
    switch (OpKind(program(at).ops[op].kind)) {
      case OpKind::Attend:
        return attend(at);
      case OpKind::AttendGrad:
        return attend_grad(at);
      case OpKind::Merge:
        return merge(at);
      case OpKind::Add:
        return unite(at, AddOperand::kAcc, AddOperand::kPart);
      case OpKind::Copy:
        return copy(at);
      case OpKind::Clear:
        return clear(at);
      case OpKind::Delta:
        return delta(at);
      case OpKind::Finish:
        return finish(at);
      case OpKind::AttendAll:
        return attend_all(at);
      case OpKind::AttendGradAll:
        return attend_grad_all(at);
      case OpKind::Send:
      case OpKind::Recv:
        return;
    }
  }

  /// Outputs, and in forward and replay also the saved tiles, must be whole at the end. Backward
  /// must also have passed every row through a `delta`.
  void check_results() {
    for (const RankProgram& program : plan_.ranks) {
      std::vector<int> results = program.outputs;
      if (plan_.pass != Pass::Backward) {
        results.insert(results.end(), program.saved.begin(), program.saved.end());
      }
      for (const int id : results) check_result(program, id);
    }
    if (plan_.pass == Pass::Backward) check_deltas();
  }

 private:
  using Cell = ViewCells::Cell;

  /// An op of a rank; the functions below address its views.
  struct OpPlace {
    Rank rank;
    int op;
  };
  const RankProgram& program(OpPlace at) const { return plan_.ranks[at.rank]; }
  const View& view(OpPlace at, std::size_t v) const { return program(at).ops[at.op].views[v]; }
  const Tile& tile(OpPlace at, std::size_t v) const { return program(at).tiles[view(at, v).tile]; }
  std::string name(OpPlace at, std::size_t v) const { return describe(program(at), view(at, v)); }

  /// The classes of query heads that read a class of KV heads.
  ClassRange readers(int kv_class) const {
    const Classes& classes = sides_.kv.heads;
    const int group = plan_.problem.group_size();
    return sides_.q.heads.sharing({classes.begin(kv_class) * group, classes.end(kv_class) * group});
  }

  /// The cells of a view, which must all be there; if they are not, a diagnostic and no cells.
  ViewCells defined(OpPlace at, std::size_t v) {
    return is_there(at, v) ? cells_[at.rank].read(view(at, v)) : ViewCells();
  }

  /// True if all cells of a view are there; otherwise adds a diagnostic.
  bool is_there(OpPlace at, std::size_t v) {
    if (cells_[at.rank].has(view(at, v))) return true;
    diagnostics_.add(at.rank, at.op, "undefined", "{} is not there, or not all of it", name(at, v));
    return false;
  }

  /// True if everything that the op reads without writing it is there.
  bool inputs_defined(OpPlace at) {
    const Op& op = program(at).ops[at.op];
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (!writes(op, v) && !is_there(at, v)) return false;
    }
    return true;
  }

  /// Writes the values of `source` into view `v`. Requires `source` in another slot.
  void overwrite(OpPlace at, std::size_t v, const ViewCells& source) {
    cells_[at.rank].write(view(at, v)).copy(source);
  }

  /// A message: each view of the receive gets the cells of the same view of the send.
  void deliver(OpPlace from, OpPlace to) {
    for (std::size_t v = 0; v < program(from).ops[from.op].views.size(); ++v) {
      const ViewCells source = defined(from, v);
      if (source.empty()) return;
      if (rotation_.none()) {
        overwrite(to, v, source);
      } else {
        rotation_.copy(source, tile(from, v).tensor, program(from).ops[from.op].peer,
                       cells_[to.rank].write(view(to, v)));
      }
    }
  }

  void define(OpPlace at, std::size_t v) { cells_[at.rank].write(view(at, v)).define(); }

  /// clear: only a partial can be an empty sum.
  void clear(OpPlace at) {
    const std::size_t dst = ClearOperand::kDst;
    if (!tile(at, dst).partial) {
      diagnostics_.add(at.rank, at.op, "partial", "{} is final and cannot be cleared",
                       name(at, dst));
      return;
    }
    define(at, dst);
  }

  /// True if both views are there and sum over the same blocks, as out and lse of one result must.
  bool same_sets(OpPlace at, std::size_t a, std::size_t b) {
    const ViewCells left = defined(at, a);
    const ViewCells right = defined(at, b);
    if (left.empty() || right.empty()) return false;
    bool same = true;
    auto other = right.begin();
    for (const Cell& cell : left) {
      same = same && left.contributions().equal(cell.cell, right.contributions(), (*other).cell);
      ++other;
    }
    if (!same) {
      diagnostics_.add(at.rank, at.op, "partial", "{} and {} are over different pairs", name(at, a),
                       name(at, b));
    }
    return same;
  }

  /// Returns true if one of the classes is -1: no pair was counted twice. Otherwise this pair of
  /// classes was counted before; adds a diagnostic that names a query block and a key block of them
  /// and returns false.
  bool once(OpPlace at, int q_class, int kv_class) {
    if (q_class < 0 || kv_class < 0) return true;
    const Sight::BlockPair pair = sight_.first(q_class, kv_class);
    diagnostics_.add(at.rank, at.op, "twice", "query block {} and key block {} are counted twice",
                     pair.q, pair.kv);
    return false;
  }

  /// Adds all visible pairs of the op to the query-side accumulator `v`. False with a diagnostic if
  /// one was there already.
  bool count_queries(OpPlace at, std::size_t v) {
    const std::span<const IdRun> keys = view(at, QkvOperand::kK).blocks.runs();
    const ViewCells cells = defined(at, v);
    for (const Cell& cell : cells) {
      const int q = cell.block_class;
      for (const IdRun& run : keys) {
        const ClassRange range = sides_.kv.blocks.within(run);
        const int kv = cells.contributions().add(cell.cell, 0, sight_.of_query(q), range);
        if (!once(at, q, kv)) return false;
      }
    }
    return true;
  }

  /// The same for the key-side accumulator `v`, separately for each class of query heads that
  /// attends and reads the KV heads of the cell.
  bool count_keys(OpPlace at, std::size_t v) {
    const View& q_view = view(at, QkvOperand::kQ);
    const std::span<const IdRun> queries = q_view.blocks.runs();
    const ClassRange attending = sides_.q.heads.sharing(q_view.heads);
    const ViewCells cells = defined(at, v);
    for (const Cell& cell : cells) {
      const int kv = cell.block_class;
      const ClassRange all = readers(cell.head_class);
      const int end = std::min(all.end, attending.end);
      for (int c = std::max(all.begin, attending.begin); c < end; ++c) {
        for (const IdRun& run : queries) {
          const ClassRange range = sides_.q.blocks.within(run);
          const int reader = c - all.begin;
          const int q = cells.contributions().add(cell.cell, reader, sight_.of_key(kv), range);
          if (!once(at, q, kv)) return false;
        }
      }
    }
    return true;
  }

  /// Accumulators that the op initialises sum over nothing before it.
  void init_sums(OpPlace at) {
    const Op& op = program(at).ops[at.op];
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (access(op, v) == Access::Write) define(at, v);
    }
  }

  /// attend: out and lse sum over the same blocks, so lse gets the sets of out.
  void attend(OpPlace at) {
    const std::size_t out = AttendOperand::kOut;
    const std::size_t lse = AttendOperand::kLse;
    if (!inputs_defined(at)) return;
    init_sums(at);
    if (same_sets(at, out, lse) && count_queries(at, out)) repeat(at, lse, out);
  }

  /// attend_grad: dk and dv have a set each, because one of them may hold a part already that the
  /// other does not.
  void attend_grad(OpPlace at) {
    if (!inputs_defined(at)) return;
    init_sums(at);
    for (const std::size_t v : kGrads) {
      if (!is_there(at, v)) return;
    }
    for (const std::size_t v : kGrads) {
      if (!count_grad(at, v)) return;
    }
  }

  /// attend_all: the call must see all keys.
  void attend_all(OpPlace at) {
    if (!inputs_defined(at) || !sees_all_keys(at, AttendOperand::kOut)) return;
    define(at, AttendOperand::kOut);
    define(at, AttendOperand::kLse);
  }

  /// attend_grad_all: a gradient that is written as a final tile must be over all pairs. One that
  /// is written as a narrow tile is a partial sum, so its pairs are counted.
  void attend_grad_all(OpPlace at) {
    if (!inputs_defined(at)) return;
    for (const std::size_t v : kGrads) {
      const bool partial = tile(at, v).partial;
      const bool of_q = v == AttendGradOperand::kDQ;
      if (!partial && !(of_q ? sees_all_keys(at, v) : sees_all_queries(at, v))) return;
      define(at, v);
      if (partial && !count_grad(at, v)) return;
    }
  }

  /// Adds all visible pairs of the op to gradient `v`.
  bool count_grad(OpPlace at, std::size_t v) {
    return v == AttendGradOperand::kDQ ? count_queries(at, v) : count_keys(at, v);
  }

  /// True if the op attends to all visible keys of the queries that view `v` shows.
  bool sees_all_keys(OpPlace at, std::size_t v) {
    const Bits keys = bits_of(view(at, QkvOperand::kK).blocks, sides_.kv.blocks);
    return for_each_class(view(at, v).blocks, sides_.q.blocks, [&](int q) {
      const int missing = first_missing(sight_.of_query(q), keys);
      return lacks_none(at, v, missing < 0 ? -1 : sight_.first(q, missing).kv);
    });
  }

  /// True if all queries that see the keys of view `v`, in all heads that read its KV heads, attend
  /// to them in this op.
  bool sees_all_queries(OpPlace at, std::size_t v) {
    const View& q_view = view(at, QkvOperand::kQ);
    const Bits queries = bits_of(q_view.blocks, sides_.q.blocks);
    const bool all_heads = q_view.heads == q_heads_of(view(at, v).heads);
    return for_each_class(view(at, v).blocks, sides_.kv.blocks, [&](int kv) {
      const int missing =
          first_missing(sight_.of_key(kv), all_heads ? queries : Bits(queries.size()));
      return lacks_none(at, v, missing < 0 ? -1 : sight_.first(missing, kv).q);
    });
  }

  /// All query heads that read some KV heads.
  Heads q_heads_of(const Heads& kv_heads) const {
    const int group = plan_.problem.group_size();
    return {kv_heads.begin * group, kv_heads.end * group};
  }

  /// Calls `pass` for each class of the blocks; false as soon as one call returns false.
  template <class Pass>
  static bool for_each_class(const BlockIds& blocks, const Classes& classes, const Pass& pass) {
    for (const IdRun& run : blocks.runs()) {
      const ClassRange range = classes.within(run);
      for (int c = range.begin; c < range.end; ++c) {
        if (!pass(c)) return false;
      }
    }
    return true;
  }

  /// True if `missing` is -1. Otherwise adds a diagnostic that view `v` lacks this block of the
  /// other side.
  bool lacks_none(OpPlace at, std::size_t v, int missing) {
    if (missing < 0) return true;
    diagnostics_.add(at.rank, at.op, "complete", "{} lacks {} block {}", name(at, v),
                     is_kv(tile(at, v).tensor) ? "query" : "key", missing);
    return false;
  }

  /// Gives view `v` the sets of view `like`; both had the same sets before the op.
  void repeat(OpPlace at, std::size_t v, std::size_t like) {
    overwrite(at, v, cells_[at.rank].read(view(at, like)));
  }

  /// Adds view `part` to view `acc`. Both must be partial and sum over disjoint sets.
  void unite(OpPlace at, std::size_t acc, std::size_t part) {
    const ViewCells into = defined(at, acc);
    const ViewCells from = defined(at, part);
    if (into.empty() || from.empty()) return;
    if (!tile(at, acc).partial || !tile(at, part).partial) {
      diagnostics_.add(at.rank, at.op, "partial", "{} and {} must both be partial to be summed",
                       name(at, acc), name(at, part));
      return;
    }
    auto more = from.begin();
    for (const Cell& cell : into) {
      if (!into.contributions().add(cell.cell, from.contributions(), (*more).cell)) {
        diagnostics_.add(at.rank, at.op, "twice", "{} and {} share a pair", name(at, acc),
                         name(at, part));
        return;
      }
      ++more;
    }
  }

  /// merge: out and lse of both sides belong together, and the two partials share no key.
  void merge(OpPlace at) {
    if (!same_sets(at, MergeOperand::kOut, MergeOperand::kLse)) return;
    if (!same_sets(at, MergeOperand::kPartOut, MergeOperand::kPartLse)) return;
    unite(at, MergeOperand::kOut, MergeOperand::kPartOut);
    unite(at, MergeOperand::kLse, MergeOperand::kPartLse);
  }

  /// copy: moves a tile as it is, or makes the final gradient of a complete sum.
  void copy(OpPlace at) {
    const std::size_t dst = CopyOperand::kDst;
    const std::size_t src = CopyOperand::kSrc;
    const ViewCells source = defined(at, src);
    if (source.empty()) return;
    // Both tiles are final or both are partial. If they share a slot, its contents stay and only
    // the name of the tile in it changes.
    if (tile(at, dst).partial == tile(at, src).partial) {
      if (tile(at, dst).slot == tile(at, src).slot) {
        cells_[at.rank].rename(view(at, dst).tile);
      } else {
        overwrite(at, dst, source);
      }
      return;
    }
    // A sum becomes a result. Out and lse do so by `finish` only, and no result becomes a sum.
    const bool gradient = tile(at, src).tensor == Tensor::DQ || is_kv(tile(at, src).tensor);
    if (tile(at, dst).partial || !gradient) {
      diagnostics_.add(at.rank, at.op, "partial", "{} cannot become {} by a copy", name(at, src),
                       name(at, dst));
      return;
    }
    if (check_complete(at, src)) define(at, dst);
  }

  /// delta: its rows must not have passed a delta before, on this or another rank.
  void delta(OpPlace at) {
    if (!inputs_defined(at)) return;
    const ViewCells cells = cells_[at.rank].write(view(at, DeltaOperand::kDelta));
    cells.define();
    for (const Cell& cell : cells) {
      char& passed = passed_delta_[rotation_.query_orbit(cell.block_class)][cell.head_class];
      if (std::atomic_ref<char>(passed).exchange(1) != 0) {
        diagnostics_.add(at.rank, at.op, "twice", "query block {} passes delta twice: {}",
                         sides_.q.blocks.begin(cell.block_class), name(at, DeltaOperand::kDelta));
        return;
      }
    }
  }

  /// All rows must have passed a delta at the end.
  void check_deltas() {
    const Classes& heads = sides_.q.heads;
    for (int q = 0; q < sides_.q.blocks.count(); ++q) {
      for (int head = 0; head < heads.count(); ++head) {
        if (passed_delta_[rotation_.query_orbit(q)][head] != 0) continue;
        diagnostics_.add(-1, -1, "complete", "query block {} heads {}-{} passes delta on no rank",
                         sides_.q.blocks.begin(q), heads.begin(head), heads.end(head));
      }
    }
  }

  /// finish: the partial result must be over all keys.
  void finish(OpPlace at) {
    if (!same_sets(at, FinishOperand::kPartOut, FinishOperand::kPartLse)) return;
    if (!check_complete(at, FinishOperand::kPartOut)) return;
    define(at, FinishOperand::kOut);
    define(at, FinishOperand::kLse);
  }

  /// A block of the other side that the cell of a partial tile still lacks, or -1.
  int lacks(Tensor tensor, const Cell& cell, const Contributions& contributions) const {
    const int own = cell.block_class;
    if (!is_kv(tensor)) {
      const int missing = contributions.missing(cell.cell, 0, sight_.of_query(own));
      return missing < 0 ? -1 : sight_.first(own, missing).kv;
    }
    // Gradients of keys need the queries of every head that reads them.
    const ClassRange all = readers(cell.head_class);
    for (int c = all.begin; c < all.end; ++c) {
      const int missing = contributions.missing(cell.cell, c - all.begin, sight_.of_key(own));
      if (missing >= 0) return sight_.first(missing, own).q;
    }
    return -1;
  }

  /// True if all cells of view `v` are there and lack nothing.
  bool check_complete(OpPlace at, std::size_t v) {
    const ViewCells cells = defined(at, v);
    const Tensor tensor = tile(at, v).tensor;
    for (const Cell& cell : cells) {
      if (!lacks_none(at, v, lacks(tensor, cell, cells.contributions()))) return false;
    }
    return !cells.empty();
  }

  /// A tile of the caller must be there at the end, unless it is empty.
  void check_result(const RankProgram& program, int id) {
    const Tile& tile = program.tiles[id];
    if (tile.blocks.empty() || tile.heads.count() == 0) return;
    const View view{.tile = id, .heads = tile.heads, .blocks = tile.blocks};
    if (!cells_[program.rank].read(view).all_defined()) {
      diagnostics_.add(program.rank, -1, "complete", "{} is not whole at the end",
                       describe(program, view));
    }
  }

  static constexpr std::array kGrads{AttendGradOperand::kDQ, AttendGradOperand::kDK,
                                     AttendGradOperand::kDV};

  const Plan& plan_;
  Diagnostics& diagnostics_;
  const Sides& sides_;
  const Sight& sight_;
  const SymbolRotation& rotation_;
  std::vector<std::vector<char>>& passed_delta_;
  std::vector<Cells>& cells_;
};

/// The ops of a thread. Which rule was broken is not told.
RankOps rank_ops(const Meaning& meaning, Contents& contents) {
  auto result = std::make_shared<Diagnostics>(1);
  auto symbols = std::make_shared<Symbols>(meaning, contents, *result);
  return {.compute =
              [result, symbols](Rank rank, int op) {
                symbols->compute(rank, op);
                return result->empty();
              },
          .send = [symbols](Rank rank, int op,
                            Parcel& parcel) { return symbols->send(rank, op, parcel); },
          .receive = [symbols](Rank rank, int op,
                               Parcel& parcel) { symbols->receive(rank, op, parcel); }};
}

}  // namespace

bool holds_on_symbols(const Plan& plan, const std::vector<MatchedMessage>& messages) {
  const Meaning meaning(plan, nullptr);
  Contents contents(meaning);
  constexpr std::size_t kRanksPerThread = 64;
  // The number of cores may be unknown, which is 0.
  const std::size_t most = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t threads = std::clamp<std::size_t>(plan.ranks.size() / kRanksPerThread, 1, most);
  std::vector<RankOps> ops;
  ops.reserve(threads);
  for (std::size_t t = 0; t < threads; ++t) ops.push_back(rank_ops(meaning, contents));
  if (!run_programs(plan, messages, ops)) return false;
  Diagnostics diagnostics(1);
  Symbols(meaning, contents, diagnostics).check_results();
  return diagnostics.empty();
}

void run_symbols(const Plan& plan, const std::vector<Action>& actions, Diagnostics& diagnostics,
                 const Fold* fold) {
  const Meaning meaning(plan, fold);
  Contents contents(meaning);
  Symbols symbols(meaning, contents, diagnostics);
  symbols.run(actions);
  if (diagnostics.empty()) symbols.check_results();
}

}  // namespace armillary::plan::verifier
