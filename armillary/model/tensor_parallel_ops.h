// tensor_parallel_ops.h: the operations of a layer whose tokens and matrices are cut over the ranks
// along tp (tensor_parallel.h).
//
//   x [B, K, E] of this rank --linear_of_norm--> [B, L, its columns]     norm, gather, products
//   [B, L, its rows] --linear, linear_of_gelu--> [B, K, E]               products, reduce-scatter
#pragma once

#include <memory>

#include "armillary/model/layer_ops.h"

namespace armillary::model {

/// A layer that reads its input by linear_of_norm, and writes its output by linear or
/// linear_of_gelu, is the same code on one rank and on several: weights are then the columns and
/// the rows of this rank.
///
/// `columns` has the shards in its options (LinearOptions), and `rows` has not. Elements on the
/// wire for each pair of them, in products of B L E: forward 2, backward 2, and 1 more unless the
/// gathered tokens are kept.
std::shared_ptr<const LayerOps> tensor_parallel_ops(std::shared_ptr<const LayerOps> columns,
                                                    std::shared_ptr<const LayerOps> rows,
                                                    TokenShards shards);

}  // namespace armillary::model
