#include "armillary/plan/verify/symbols.h"

#include <algorithm>
#include <utility>

#include "armillary/plan/verify/sight.h"

namespace armillary::plan::verifier {
namespace {

class Symbols {
 public:
  Symbols(const Plan& plan, const std::vector<Message>& messages, Report& report)
      : plan_(plan),
        messages_(messages),
        report_(report),
        sides_(sides_of(plan)),
        sight_(plan, sides_),
        passed_delta_(sides_.q.blocks.count(), std::vector<char>(sides_.q.heads.count())) {
    for (const RankProgram& program : plan.ranks) {
      cells_.emplace_back(program, sides_);
      for (const int tile : program.inputs) cells_.back().define(tile);
      if (plan.pass == Pass::Backward) {
        for (const int tile : program.saved) cells_.back().define(tile);
      }
    }
  }

  void run(const std::vector<Event>& events) {
    for (const Event& event : events) {
      if (report_.full()) return;
      if (event.message >= 0) {
        deliver(messages_[event.message]);
      } else {
        compute(event.rank, event.op);
      }
    }
  }

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
  using Spot = Spots::Spot;

  /// What an op works on: the views of op `op` of `rank`.
  struct Place {
    Rank rank;
    int op;
  };
  const RankProgram& program(Place at) const { return plan_.ranks[at.rank]; }
  const View& view(Place at, std::size_t v) const { return program(at).ops[at.op].views[v]; }
  const Tile& tile(Place at, std::size_t v) const { return program(at).tiles[view(at, v).tile]; }
  std::string name(Place at, std::size_t v) const { return describe(program(at), view(at, v)); }

  /// Classes of query heads that read a class of KV heads.
  ClassRange readers(int kv_class) const {
    const Classes& classes = sides_.kv.heads;
    const int group = plan_.problem.group_size();
    return sides_.q.heads.sharing({classes.begin(kv_class) * group, classes.end(kv_class) * group});
  }

  /// Cells of a view that must all be there; empty, with a diagnostic, if they are not.
  Spots defined(Place at, std::size_t v) {
    Spots spots = cells_[at.rank].read(view(at, v));
    if (spots.all_defined()) return spots;
    report_.add(at.rank, at.op, "undefined", "{} is not there, or not all of it", name(at, v));
    return {};
  }

  bool all_defined(Place at, std::initializer_list<std::size_t> views) {
    return std::all_of(views.begin(), views.end(),
                       [&](std::size_t v) { return !defined(at, v).empty(); });
  }

  /// Requires `source` in another slot.
  void overwrite(Place at, std::size_t v, const Spots& source) {
    cells_[at.rank].write(view(at, v)).copy(source);
  }

  void deliver(const Message& message) {
    const Place from{message.from, message.send};
    for (std::size_t v = 0; v < program(from).ops[from.op].views.size(); ++v) {
      const Spots source = defined(from, v);
      if (source.empty()) return;
      overwrite({message.to, message.recv}, v, source);
    }
  }

  void compute(Rank rank, int op) {
    const Place at{rank, op};
    switch (program(at).ops[op].kind) {
      case OpKind::Attend:
        return attend(at);
      case OpKind::AttendGrad:
        return attend_grad(at);
      case OpKind::Merge:
        return merge(at);
      case OpKind::Add:
        return unite(at, 0, 1);
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

  void define(Place at, std::size_t v) { cells_[at.rank].write(view(at, v)).define(); }

  void clear(Place at) {
    if (!tile(at, 0).partial) {
      report_.add(at.rank, at.op, "partial", "{} is final and cannot be cleared", name(at, 0));
      return;
    }
    define(at, 0);
  }

  /// Out and lse of one result must sum over the same.
  bool same_sets(Place at, std::size_t a, std::size_t b) {
    const Spots left = defined(at, a);
    const Spots right = defined(at, b);
    if (left.empty() || right.empty()) return false;
    bool same = true;
    auto other = right.begin();
    for (const Spot& spot : left) {
      same = same && left.counted().equal(spot.cell, right.counted(), (*other).cell);
      ++other;
    }
    if (!same) {
      report_.add(at.rank, at.op, "partial", "{} and {} are over different pairs", name(at, a),
                  name(at, b));
    }
    return same;
  }

  /// Reports a pair of block classes that a set had already.
  bool once(Place at, int q_class, int kv_class) {
    if (q_class < 0 || kv_class < 0) return true;
    const Sight::Pair pair = sight_.first(q_class, kv_class);
    report_.add(at.rank, at.op, "twice", "query block {} and key block {} are counted twice",
                pair.q, pair.kv);
    return false;
  }

  /// Counts all visible pairs of the op in the query-side tile `v`.
  bool count_queries(Place at, std::size_t v) {
    const Bits keys = bits_of(view(at, 1).blocks, sides_.kv.blocks);
    const Spots spots = defined(at, v);
    for (const Spot& spot : spots) {
      const int q = spot.block_class;
      const int kv = spots.counted().add(spot.cell, 0, sight_.of_query(q), keys);
      if (!once(at, q, kv)) return false;
    }
    return true;
  }

  /// Counts all visible pairs of the op in the key-side tile `v`, under each KV head that is read.
  bool count_keys(Place at, std::size_t v) {
    const Bits queries = bits_of(view(at, 0).blocks, sides_.q.blocks);
    const ClassRange attending = sides_.q.heads.sharing(view(at, 0).heads);
    const Spots spots = defined(at, v);
    for (const Spot& spot : spots) {
      const int kv = spot.block_class;
      const ClassRange all = readers(spot.head_class);
      const int end = std::min(all.end, attending.end);
      for (int c = std::max(all.begin, attending.begin); c < end; ++c) {
        const int q = spots.counted().add(spot.cell, c - all.begin, sight_.of_key(kv), queries);
        if (!once(at, q, kv)) return false;
      }
    }
    return true;
  }

  /// Sums that begin with the op count nothing before it.
  void begin_fresh_sums(Place at) {
    const Op& op = program(at).ops[at.op];
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      if (access(op, v) == Access::Write) define(at, v);
    }
  }

  void attend(Place at) {
    if (!all_defined(at, {0, 1, 2})) return;
    begin_fresh_sums(at);
    if (same_sets(at, 3, 4) && count_queries(at, 3)) repeat(at, 4, 3);
  }

  /// The sums of dk and of dv are two: what the one has already the other may not have yet.
  void attend_grad(Place at) {
    if (!all_defined(at, {0, 1, 2, 3, 4, 5})) return;
    begin_fresh_sums(at);
    if (!all_defined(at, {6, 7, 8})) return;
    if (count_queries(at, 6) && count_keys(at, 7)) count_keys(at, 8);
  }

  void attend_all(Place at) {
    if (!all_defined(at, {0, 1, 2}) || !sees_all_keys(at, 3)) return;
    define(at, 3);
    define(at, 4);
  }

  /// What it writes is the whole gradient, or travels narrow and is a part of it.
  void attend_grad_all(Place at) {
    if (!all_defined(at, {0, 1, 2, 3, 4, 5})) return;
    for (const std::size_t v : {6, 7, 8}) {
      if (!tile(at, v).partial && !(v == 6 ? sees_all_keys(at, v) : sees_all_queries(at, v)))
        return;
      define(at, v);
      if (!tile(at, v).partial) continue;
      if (!(v == 6 ? count_queries(at, v) : count_keys(at, v))) return;
    }
  }

  /// Whether the op attends to all visible keys of the queries that view `v` shows.
  bool sees_all_keys(Place at, std::size_t v) {
    const Bits keys = bits_of(view(at, 1).blocks, sides_.kv.blocks);
    return for_each_class(view(at, v).blocks, sides_.q.blocks, [&](int q) {
      const int missing = first_missing(sight_.of_query(q), keys);
      return lacks_none(at, v, missing < 0 ? -1 : sight_.first(q, missing).kv);
    });
  }

  /// Whether all visible queries, under all heads that read them, attend to the keys of view `v`.
  bool sees_all_queries(Place at, std::size_t v) {
    const Bits queries = bits_of(view(at, 0).blocks, sides_.q.blocks);
    const bool all_heads = view(at, 0).heads == q_heads_of(view(at, v).heads);
    return for_each_class(view(at, v).blocks, sides_.kv.blocks, [&](int kv) {
      const int missing =
          first_missing(sight_.of_key(kv), all_heads ? queries : Bits(queries.size()));
      return lacks_none(at, v, missing < 0 ? -1 : sight_.first(missing, kv).q);
    });
  }

  Heads q_heads_of(const Heads& kv_heads) const {
    const int group = plan_.problem.group_size();
    return {kv_heads.begin * group, kv_heads.end * group};
  }

  /// False as soon as one of the classes of the blocks does not pass.
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

  /// Reports the block of the other side that is missing; -1: none is.
  bool lacks_none(Place at, std::size_t v, int missing) {
    if (missing < 0) return true;
    report_.add(at.rank, at.op, "complete", "{} lacks {} block {}", name(at, v),
                is_kv(tile(at, v).tensor) ? "query" : "key", missing);
    return false;
  }

  /// Counts in tile `v` what was counted in `like`, whose sets were the same.
  void repeat(Place at, std::size_t v, std::size_t like) {
    overwrite(at, v, cells_[at.rank].read(view(at, like)));
  }

  /// acc += part, over disjoint sets.
  void unite(Place at, std::size_t acc, std::size_t part) {
    const Spots into = defined(at, acc);
    const Spots from = defined(at, part);
    if (into.empty() || from.empty()) return;
    if (!tile(at, acc).partial || !tile(at, part).partial) {
      report_.add(at.rank, at.op, "partial", "{} and {} must both be partial to be summed",
                  name(at, acc), name(at, part));
      return;
    }
    auto more = from.begin();
    for (const Spot& spot : into) {
      if (!into.counted().add(spot.cell, from.counted(), (*more).cell)) {
        report_.add(at.rank, at.op, "twice", "{} and {} share a pair", name(at, acc),
                    name(at, part));
        return;
      }
      ++more;
    }
  }

  void merge(Place at) {
    if (!same_sets(at, 0, 1) || !same_sets(at, 2, 3)) return;
    unite(at, 0, 2);
    unite(at, 1, 3);
  }

  void copy(Place at) {
    const Spots source = defined(at, 1);
    if (source.empty()) return;
    if (tile(at, 0).partial == tile(at, 1).partial) {
      if (tile(at, 0).slot == tile(at, 1).slot) {
        cells_[at.rank].rename(view(at, 0).tile);
      } else {
        overwrite(at, 0, source);
      }
      return;
    }
    const bool gradient = tile(at, 1).tensor == Tensor::DQ || is_kv(tile(at, 1).tensor);
    if (tile(at, 0).partial || !gradient) {
      report_.add(at.rank, at.op, "partial", "{} cannot become {} by a copy", name(at, 1),
                  name(at, 0));
      return;
    }
    if (check_complete(at, 1)) define(at, 0);
  }

  void delta(Place at) {
    if (!all_defined(at, {1, 2, 3})) return;
    const Spots made = cells_[at.rank].write(view(at, 0));
    made.define();
    for (const Spot& spot : made) {
      char& passed = passed_delta_[spot.block_class][spot.head_class];
      if (passed != 0) {
        report_.add(at.rank, at.op, "twice", "query block {} passes delta twice: {}",
                    sides_.q.blocks.begin(spot.block_class), name(at, 0));
        return;
      }
      passed = 1;
    }
  }

  void check_deltas() {
    const Classes& heads = sides_.q.heads;
    for (int q = 0; q < sides_.q.blocks.count(); ++q) {
      for (int head = 0; head < heads.count(); ++head) {
        if (passed_delta_[q][head] != 0) continue;
        report_.add(-1, -1, "complete", "query block {} heads {}-{} passes delta on no rank",
                    sides_.q.blocks.begin(q), heads.begin(head), heads.end(head));
      }
    }
  }

  void finish(Place at) {
    if (!same_sets(at, 2, 3) || !check_complete(at, 2)) return;
    define(at, 0);
    define(at, 1);
  }

  /// A block of the other side that a partial result still lacks, or -1.
  int lacks(Tensor tensor, const Spot& spot, const Counted& counted) const {
    const int own = spot.block_class;
    if (!is_kv(tensor)) {
      const int missing = counted.missing(spot.cell, 0, sight_.of_query(own));
      return missing < 0 ? -1 : sight_.first(own, missing).kv;
    }
    const ClassRange all = readers(spot.head_class);
    for (int c = all.begin; c < all.end; ++c) {
      const int missing = counted.missing(spot.cell, c - all.begin, sight_.of_key(own));
      if (missing >= 0) return sight_.first(missing, own).q;
    }
    return -1;
  }

  bool check_complete(Place at, std::size_t v) {
    const Spots spots = defined(at, v);
    const Tensor tensor = tile(at, v).tensor;
    for (const Spot& spot : spots) {
      if (!lacks_none(at, v, lacks(tensor, spot, spots.counted()))) return false;
    }
    return !spots.empty();
  }

  void check_result(const RankProgram& program, int id) {
    const Tile& tile = program.tiles[id];
    if (tile.blocks.empty() || tile.heads.count() == 0) return;
    const View view{.tile = id, .heads = tile.heads, .blocks = tile.blocks};
    if (!cells_[program.rank].read(view).all_defined()) {
      report_.add(program.rank, -1, "complete", "{} is not whole at the end",
                  describe(program, view));
    }
  }

  const Plan& plan_;
  const std::vector<Message>& messages_;
  Report& report_;
  Sides sides_;
  Sight sight_;
  /// By query block class, then head class: whether its rows have passed `delta`, on any rank.
  std::vector<std::vector<char>> passed_delta_;
  std::vector<Cells> cells_;
};

}  // namespace

void run_symbols(const Plan& plan, const std::vector<Message>& messages,
                 const std::vector<Event>& events, Report& report) {
  Symbols symbols(plan, messages, report);
  symbols.run(events);
  if (report.empty()) symbols.check_results();
}

}  // namespace armillary::plan::verifier
