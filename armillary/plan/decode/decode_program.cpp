// decode_program.cpp: slot r of a rank takes the parts of rank r of one layer after the other; the
// sum of each layer has a slot of the caller.
#include "armillary/plan/decode/decode_program.h"

#include <string_view>
#include <utility>

#include "armillary/core/checked.h"
#include "armillary/core/error.h"

namespace armillary::plan::decode {
namespace {

constexpr Lane kExchange = 1;

class DecodeBuilder {
 public:
  DecodeBuilder(const DecodeShape& shape, const Measures& measures, Rank rank)
      : shape_(shape), measures_(measures) {
    program_.words = &decode_words();
    program_.rank = rank;
    program_.slots.resize(static_cast<std::size_t>(shape.world));
  }

  RankProgram build() {
    for (int layer = 0; layer < shape_.layers; ++layer) add_layer(layer);
    return std::move(program_);
  }

 private:
  int add_tile(DecodeTensor tensor, int block, int slot, bool external) {
    Tile tile{.tensor = tensor, .heads = {0, shape_.heads}, .blocks = {block}, .slot = slot};
    program_.slots[static_cast<std::size_t>(slot)] = {.bytes = measures_.bytes(tile),
                                                      .external = external};
    program_.tiles.push_back(std::move(tile));
    return static_cast<int>(program_.tiles.size()) - 1;
  }

  View whole(int tile) const {
    return {tile, program_.tiles[tile].heads, program_.tiles[tile].blocks};
  }

  void add_message(DecodeOp kind, int layer, Rank peer, int tile) {
    program_.ops.push_back({.kind = kind,
                            .lane = kExchange,
                            .step = layer,
                            .peer = peer,
                            .collective = Collective::AllGather,
                            .views = {whole(tile)}});
  }

  void add_layer(int layer) {
    const int first = static_cast<int>(program_.tiles.size());
    for (Rank rank = 0; rank < shape_.world; ++rank) {
      add_tile(DecodeTensor::Part, part_block(shape_, layer, rank), rank, false);
    }
    program_.slots.emplace_back();
    const int sum = add_tile(DecodeTensor::Sum, layer, static_cast<int>(program_.slots.size()) - 1,
                             /*external=*/true);
    program_.outputs.push_back(sum);
    const Rank self = program_.rank;
    program_.ops.push_back(
        {.kind = DecodeOp::Attend, .step = layer, .views = {whole(first + self)}});
    for (int distance = 1; distance < shape_.world; ++distance) {
      const Rank to = (self + distance) % shape_.world;
      const Rank from = (self - distance + shape_.world) % shape_.world;
      add_message(DecodeOp::Recv, layer, from, first + from);
      add_message(DecodeOp::Send, layer, to, first + self);
    }
    for (Rank rank = 0; rank < shape_.world; ++rank) {
      program_.ops.push_back({.kind = DecodeOp::Merge,
                              .step = layer,
                              .init = {false, rank == 0},
                              .views = {whole(sum), whole(first + rank)}});
    }
  }

  const DecodeShape& shape_;
  const Measures& measures_;
  RankProgram program_;
};

void require_positive(std::string_view what, std::int64_t value) {
  if (value >= 1) return;
  fail<InvalidArgument>("decode: {} {} given; at least 1 is required", what, value);
}

}  // namespace

void check_shape(const DecodeShape& shape) {
  require_positive("world", shape.world);
  require_positive("layers", shape.layers);
  require_positive("tokens", shape.tokens);
  require_positive("heads", shape.heads);
  require_positive("value dim", shape.value_dim);
}

std::int64_t moved_bytes(const DecodeShape& shape) {
  return checked_product("decode: bytes of a step",
                         {shape.layers, shape.world, shape.world - 1, shape.tokens, shape.heads,
                          std::int64_t{shape.value_dim} + 1, bytes_of(shape.accumulator)});
}

Measures decode_measures(const DecodeShape& shape) {
  const std::vector<std::int64_t> parts(
      static_cast<std::size_t>(shape.layers) * static_cast<std::size_t>(shape.world), shape.tokens);
  const std::vector<std::int64_t> sums(static_cast<std::size_t>(shape.layers), shape.tokens);
  return {
      decode_words(),
      1,
      {{.heads = shape.heads, .dim = std::int64_t{shape.value_dim} + 1, .dtype = shape.accumulator},
       {.heads = shape.heads, .dim = shape.value_dim, .dtype = shape.accumulator}},
      {parts, sums}};
}

RankProgram rank_program(const DecodeShape& shape, const Measures& measures, Rank rank) {
  return DecodeBuilder(shape, measures, rank).build();
}

Decode build_decode(const DecodeShape& shape) {
  check_shape(shape);
  Decode decode{.shape = shape, .measures = decode_measures(shape), .ranks = {}};
  for (Rank rank = 0; rank < shape.world; ++rank) {
    decode.ranks.push_back(rank_program(shape, decode.measures, rank));
  }
  return decode;
}

}  // namespace armillary::plan::decode
