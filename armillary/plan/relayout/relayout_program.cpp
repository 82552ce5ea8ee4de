// relayout_program.cpp: tiles have slots of their own, all of the caller; messages are in the order
// of transfers, which is the same on both sides.
#include "armillary/plan/relayout/relayout_program.h"

#include <map>
#include <utility>

namespace armillary::plan::relayout {
namespace {

constexpr Lane kMoves = 1;

class RelayoutBuilder {
 public:
  RelayoutBuilder(const RelayoutTables& tables, const Measures& measures, Rank rank)
      : tables_(tables), measures_(measures) {
    program_.words = &relayout_words();
    program_.rank = rank;
  }

  RankProgram build() {
    for (Tile& tile : tables_.source_tiles(program_.rank)) {
      program_.inputs.push_back(add_tile(std::move(tile), sources_));
    }
    for (Tile& tile : tables_.target_tiles(program_.rank)) {
      program_.outputs.push_back(add_tile(std::move(tile), targets_));
    }
    for (const Transfer& transfer : tables_.transfers()) {
      const bool gives = transfer.from == program_.rank;
      const bool gets = transfer.to == program_.rank;
      if (gives && gets) {
        keep(transfer);
      } else if (gives) {
        add_message(RelayoutOp::Send, transfer, transfer.to, sources_);
      } else if (gets) {
        add_message(RelayoutOp::Recv, transfer, transfer.from, targets_);
      }
    }
    return std::move(program_);
  }

 private:
  /// Tiles by layer and tensor.
  using Places = std::map<std::pair<int, RelayoutTensor>, int>;

  int add_tile(Tile tile, Places& places) {
    tile.slot = static_cast<int>(program_.slots.size());
    program_.slots.push_back({.bytes = measures_.bytes(tile), .external = true});
    const int id = static_cast<int>(program_.tiles.size());
    const RelayoutTensor tensor = tile.tensor;
    places[{tables_.layer_of(tile.blocks.front()), tensor}] = id;
    program_.tiles.push_back(std::move(tile));
    return id;
  }

  View view(const Transfer& transfer, RelayoutTensor tensor, const Places& places) const {
    return {places.at({transfer.layer, tensor}), transfer.heads,
            BlockIds{tables_.block(transfer.layer, transfer.part)}};
  }

  void keep(const Transfer& transfer) {
    for (const RelayoutTensor tensor : kRelayoutTensors) {
      program_.ops.push_back(
          {.kind = RelayoutOp::Keep,
           .step = transfer.layer,
           .views = {view(transfer, tensor, targets_), view(transfer, tensor, sources_)}});
    }
  }

  void add_message(RelayoutOp kind, const Transfer& transfer, Rank peer, const Places& places) {
    program_.ops.push_back({.kind = kind,
                            .lane = kMoves,
                            .step = transfer.layer,
                            .peer = peer,
                            .views = {view(transfer, RelayoutTensor::K, places),
                                      view(transfer, RelayoutTensor::V, places)}});
  }

  const RelayoutTables& tables_;
  const Measures& measures_;
  RankProgram program_;
  Places sources_, targets_;
};

}  // namespace

Measures relayout_measures(const RelayoutTables& tables) {
  const CacheShape& cache = tables.shape().cache;
  std::vector<std::int64_t> tokens;  // By block.
  for (int layer = 0; layer < cache.layers; ++layer) {
    for (const TokenPart& part : tables.parts()) tokens.push_back(part.tokens);
  }
  const auto measure = [&](int dim) {
    return TensorMeasure{.heads = cache.kv_heads, .dim = dim, .dtype = cache.dtype};
  };
  return {relayout_words(), 1, {measure(cache.head_dim), measure(cache.value_dim)}, {tokens}};
}

RankProgram rank_program(const RelayoutTables& tables, const Measures& measures, Rank rank) {
  return RelayoutBuilder(tables, measures, rank).build();
}

Relayout build_relayout(const RelayoutShape& shape) {
  RelayoutTables tables(shape);
  Measures measures = relayout_measures(tables);
  Relayout relayout{.tables = std::move(tables), .measures = std::move(measures), .ranks = {}};
  for (Rank rank = 0; rank < shape.world; ++rank) {
    relayout.ranks.push_back(rank_program(relayout.tables, relayout.measures, rank));
  }
  return relayout;
}

std::int64_t sent_bytes(const World& world) {
  std::int64_t total = 0;
  for (const RankProgram& program : world.ranks) {
    for (const Op& op : program.ops) {
      if (op.kind == RelayoutOp::Send) total += world.measures.bytes(program, op);
    }
  }
  return total;
}

}  // namespace armillary::plan::relayout
