// Dependencies by a scoreboard. For every slot a history is kept: the outstanding reads and writes
// of the tile that is in it, and those of the tile before. An op goes through its views one by one,
// waits for the touches it conflicts with, and then adds its own. Touches that a later write covers
// are dropped, so histories stay short.
#include "armillary/plan/program/hazards.h"

#include <algorithm>
#include <iterator>

#include "armillary/plan/program/vocabulary.h"

namespace armillary::plan {
namespace {

/// A read or write of a view by an op. The tile and the outermost blocks are copied out of the
/// view: they tell most touches apart, so that few views have to be compared.
struct Touch {
  Touch(int op, const View& view, bool writes)
      : op(op),
        tile(view.tile),
        first_block(view.blocks.front()),
        last_block(view.blocks.back()),
        view(&view),
        writes(writes) {}
  int op;
  int tile;
  int first_block;
  int last_block;
  const View* view;
  bool writes;
  bool waited_for = false;  ///< True once a later touch waits for this one.
};

/// The outstanding touches of a slot. `reads` and `writes` are those of the tile that is in it;
/// `before` has those of the previous tile that no later touch waited for.
struct History {
  int tile = -1;
  std::vector<Touch> before;
  std::vector<Touch> reads;
  std::vector<Touch> writes;
};

/// True if `outer` shows everything that `inner` shows. Both are views of one tile.
bool covers(const View& outer, const View& inner) {
  return outer.heads.contains(inner.heads) && includes(outer.blocks, inner.blocks);
}

/// True if one of two touches of a slot must wait for the other. Touches of different tiles
/// conflict whatever their views. For example, a plan that reads a tile after another tile has
/// replaced it is wrong; such a read must wait for the write that replaced the tile, because
/// without that wait the verifier could run the read first and would find nothing wrong.
bool conflict(const Touch& a, const Touch& b) {
  if (a.op == b.op || !(a.writes || b.writes)) return false;
  if (a.tile != b.tile) return true;
  return a.first_block <= b.last_block && b.first_block <= a.last_block &&
         overlap(*a.view, *b.view);
}

/// A new tile takes the slot. It must wait for the outstanding accesses of the previous tile: those
/// that no later access waited for. All other accesses come before one of these.
void replace_tile(History& history, int tile) {
  history.before.clear();
  for (std::vector<Touch>* touches : {&history.reads, &history.writes}) {
    std::copy_if(touches->begin(), touches->end(), std::back_inserter(history.before),
                 [](const Touch& touch) { return !touch.waited_for; });
    touches->clear();
  }
  history.tile = tile;
}

/// Adds to `waits` the ops of `olds` that `touch` must wait for. A write that covers an older touch
/// replaces it in the history: to wait for the write is to wait for both.
void wait_for(std::vector<Touch>& olds, const Touch& touch, std::vector<int>& waits) {
  auto rest = olds.begin();
  for (Touch& old : olds) {
    if (conflict(old, touch)) {
      waits.push_back(old.op);
      old.waited_for = true;
      if (touch.writes && old.tile == touch.tile && covers(*touch.view, *old.view)) continue;
    }
    *rest++ = old;
  }
  olds.erase(rest, olds.end());
}

/// Adds to `waits` the ops that `touch` must wait for, and adds `touch` to the history. Reads wait
/// for writes; writes wait for reads, writes and the previous tile.
void touch_slot(History& history, const Touch& touch, std::vector<int>& waits) {
  if (history.tile < 0) history.tile = touch.tile;
  if (touch.writes && history.tile != touch.tile) replace_tile(history, touch.tile);
  wait_for(history.writes, touch, waits);
  if (touch.writes) {
    wait_for(history.reads, touch, waits);
    for (const Touch& old : history.before) waits.push_back(old.op);
  }
  (touch.writes ? history.writes : history.reads).push_back(touch);
}

}  // namespace

bool overlap(const View& a, const View& b) {
  if (a.heads.begin >= b.heads.end || b.heads.begin >= a.heads.end) return false;
  return meet(a.blocks, b.blocks);
}

void for_each_dependencies(const RankProgram& program, const Dependencies& visit) {
  const Vocabulary& words = *program.words;
  std::vector<History> histories(program.slots.size());
  std::vector<int> numbers;
  for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
    const Op& op = program.ops[i];
    numbers.clear();
    for (std::size_t v = 0; v < op.views.size(); ++v) {
      const Touch touch(i, op.views[v], words.writes(op, v));
      touch_slot(histories[program.tiles[touch.tile].slot], touch, numbers);
    }
    if (numbers.size() > 1) {
      std::sort(numbers.begin(), numbers.end());
      numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    }
    visit(i, numbers);
  }
}

LaterWrites::LaterWrites(const RankProgram& program)
    : program_(program), views_(program.slots.size()) {}

void LaterWrites::add(const Op& op) {
  for (std::size_t v = 0; v < op.views.size(); ++v) {
    const View& view = op.views[v];
    if (program_.words->writes(op, v)) views_[program_.tiles[view.tile].slot].push_back(&view);
  }
}

const View* LaterWrites::over(const View& view) const {
  const std::vector<const View*>& later = views_[program_.tiles[view.tile].slot];
  const auto entry = std::find_if(later.rbegin(), later.rend(), [&](const View* other) {
    return other->tile != view.tile || overlap(*other, view);
  });
  return entry == later.rend() ? nullptr : *entry;
}

std::vector<std::vector<int>> dependencies(const RankProgram& program) {
  std::vector<std::vector<int>> waits;
  waits.reserve(program.ops.size());
  for_each_dependencies(program, [&](int, std::span<const int> numbers) {
    waits.emplace_back(numbers.begin(), numbers.end());
  });
  return waits;
}

}  // namespace armillary::plan
