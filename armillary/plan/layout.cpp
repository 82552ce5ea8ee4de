// Shards of every layout. All layouts but `balanced` are closed forms of (length, world, rank), the
// same for queries and keys. `balanced` measures pieces of the queries with the mask and deals them
// out greedily.
#include "armillary/plan/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"

namespace armillary::plan {
namespace {

/// Pieces per rank of `balanced`: enough to even out their areas, few enough to keep plans small.
constexpr std::int64_t kPiecesPerRank = 16;

constexpr std::array<std::string_view, 4> kNames = {"contiguous", "zigzag", "striped", "balanced"};

/// Appends piece i of a length cut into nearly equal pieces, unless it is empty.
void append_piece(Runs& runs, std::int64_t length, std::int64_t pieces, std::int64_t i) {
  const Interval piece = {piece_begin(length, pieces, i), piece_begin(length, pieces, i + 1)};
  if (!piece.empty()) runs.push_back(run_of(piece));
}

Runs contiguous(std::int64_t length, int world, int rank) {
  Runs runs;
  append_piece(runs, length, world, rank);
  return runs;
}

/// First token of a piece of zigzag. Tokens left over go to the middle of the sequence first: there
/// an extra token costs as much work as a query as it does as a key, and its rank is at most 1.6 %
/// above the mean work from 64 tokens a rank on. At the begin or at the end of the sequence it
/// would be twice that, for strategies that keep the keys or the queries in place.
std::int64_t zigzag_begin(std::int64_t length, std::int64_t world, std::int64_t piece) {
  const std::int64_t left = length % (2 * world);
  const std::int64_t lower = std::clamp(left - world, std::int64_t{0}, piece);
  const std::int64_t upper = std::clamp(piece - world, std::int64_t{0}, left);
  return length / (2 * world) * piece + lower + upper;
}

/// One early and one late piece; a causal mask makes the late one as expensive as the early is
/// cheap.
Runs zigzag(std::int64_t length, int world, int rank) {
  Runs runs;
  for (const int piece : {rank, 2 * world - 1 - rank}) {
    const Interval tokens = {zigzag_begin(length, world, piece),
                             zigzag_begin(length, world, std::int64_t{piece} + 1)};
    if (!tokens.empty()) runs.push_back(run_of(tokens));
  }
  return runs;
}

/// All stripes of a rank as one strided run, clipped at the end of the sequence.
Runs striped(std::int64_t length, int world, int rank, std::int64_t stripe) {
  const std::int64_t width = std::min(stripe, length);
  const std::int64_t step = checked_product("layout striped: world x stripe", {world, width});
  const std::int64_t begin = width * rank;
  if (begin >= length) return {};
  return clip(Run{begin, ceil_div(length - begin, step), step, width}, {0, length});
}

/// A piece of the queries and the number of pairs it sees.
struct AreaPiece {
  Run run;
  std::int64_t area = 0;
};

/// The pieces of the queries, largest area first; equal areas stay in order of position.
std::vector<AreaPiece> pieces_by_area(const Mask& mask, int world) {
  Runs keys;
  append_piece(keys, mask.kv_len(), 1, 0);
  const std::int64_t count = std::min(kPiecesPerRank * world, mask.q_len());
  std::vector<AreaPiece> pieces;
  pieces.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    Runs piece;
    append_piece(piece, mask.q_len(), count, i);
    pieces.push_back({piece.front(), mask.area(piece, keys)});
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const AreaPiece& a, const AreaPiece& b) { return a.area > b.area; });
  return pieces;
}

/// Deals the pieces out, largest first, one to every rank in turn. Before each deal the ranks are
/// sorted by the area they have, so the rank with the least area gets the largest piece.
std::vector<Runs> balanced(const Mask& mask, int world) {
  const std::vector<AreaPiece> pieces = pieces_by_area(mask, world);
  std::vector<Runs> owned(world);
  std::vector<std::int64_t> area(world);
  std::vector<int> order(world);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::size_t place = i % order.size();
    if (place == 0) {
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return area[a] < area[b]; });
    }
    const int rank = order[place];
    owned[rank].push_back(pieces[i].run);
    area[rank] += pieces[i].area;
  }
  // Memory order is by position.
  for (Runs& runs : owned) {
    std::sort(runs.begin(), runs.end(),
              [](const Run& a, const Run& b) { return a.begin < b.begin; });
  }
  return owned;
}

/// Shards of all ranks by the closed forms.
std::vector<Runs> shards_of(const Layout& layout, std::int64_t length, int world) {
  std::vector<Runs> shards;
  shards.reserve(world);
  for (int rank = 0; rank < world; ++rank) {
    switch (layout.kind) {
      case LayoutKind::Zigzag:
        shards.push_back(zigzag(length, world, rank));
        break;
      case LayoutKind::Striped:
        shards.push_back(striped(length, world, rank, layout.stripe));
        break;
      case LayoutKind::Contiguous:
      case LayoutKind::Balanced:  // Only the keys of a mask with two lengths come here.
        shards.push_back(contiguous(length, world, rank));
        break;
    }
  }
  return shards;
}

}  // namespace

Layout parse_layout(std::string_view text) {
  const Spec spec = parse_spec(text);
  const auto kind = static_cast<LayoutKind>(parse_choice("layout", spec.name, kNames));
  const Arguments arguments(fmt::format("layout {}", spec.name), spec.arguments, {});
  if (kind != LayoutKind::Striped) {
    arguments.refuse_values();
    return {.kind = kind};
  }
  if (!spec.arguments) return {.kind = kind, .stripe = 1};
  return {
      .kind = kind,
      .stripe = parse_integer(arguments.where(), arguments.value("the tokens of a stripe"), {1})};
}

std::string to_string(const Layout& layout) {
  const std::string name(kNames[static_cast<std::size_t>(layout.kind)]);
  return layout.kind == LayoutKind::Striped ? fmt::format("{}:{}", name, layout.stripe) : name;
}

Shards shards(const Layout& layout, const Mask& mask, int world) {
  ARMILLARY_CHECK(world >= 1 && layout.stripe >= 1);
  Shards shards;
  shards.q = layout.kind == LayoutKind::Balanced ? balanced(mask, world)
                                                 : shards_of(layout, mask.q_len(), world);
  shards.kv = mask.q_len() == mask.kv_len() ? shards.q : shards_of(layout, mask.kv_len(), world);
  return shards;
}

}  // namespace armillary::plan
