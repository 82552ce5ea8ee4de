// pass.cpp: the parts that all passes have in common. Features and logits are whole on every rank
// along tp, which keep parts of them between units.
#include "armillary/serve/pass.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "armillary/core/error.h"
#include "armillary/model/global_range.h"
#include "armillary/model/tensor_parallel.h"

namespace armillary::serve {

PassAppends::~PassAppends() {
  for (const SessionId session : sessions_) cache_.drop_append(session);
}

void PassAppends::begin(SessionId session, const plan::relayout::CacheExtent& extent) {
  cache_.begin_append(session, extent);
  sessions_.push_back(session);
}

std::vector<plan::Interval> PassAppends::rows() const {
  std::vector<plan::Interval> rows;
  for (const SessionId session : sessions_) {
    const std::vector<plan::Interval> part = cache_.new_rows(session);
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

void PassAppends::end() {
  for (const SessionId session : sessions_) cache_.end_append(session);
  sessions_.clear();
}

std::vector<std::int64_t> packed_tokens(std::span<const PassPart> parts) {
  std::vector<std::int64_t> tokens;
  for (const PassPart& part : parts) {
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
  }
  return tokens;
}

std::vector<std::int64_t> packed_positions(const KvCache& cache, std::span<const PassPart> parts) {
  std::vector<std::int64_t> positions;
  for (const PassPart& part : parts) {
    const std::int64_t begin = cache.tokens(part.session);
    for (std::size_t i = 0; i < part.tokens.size(); ++i) {
      positions.push_back(begin + static_cast<std::int64_t>(i));
    }
  }
  return positions;
}

at::Tensor features_of(const PassContext& context, const std::vector<std::int64_t>& tokens,
                       const std::vector<std::int64_t>& positions, const model::Attend& attend) {
  const at::NoGradGuard no_grad;
  const model::ModelInputs inputs{
      .batch = {{model::kTokens, at::tensor(tokens, at::kLong).unsqueeze(0)}},
      .positions_L = at::tensor(positions, at::kLong),
      .attends = attend,
      .tensor_parallel = context.tensor_parallel};
  at::Tensor x_BLE;
  const int last = static_cast<int>(context.model.units().size()) - 1;
  for (int unit = 0; unit < last; ++unit) {
    x_BLE = context.model.run(unit, context.use(unit), x_BLE, inputs);
  }
  // Ranks along tp have some of the tokens each.
  const model::TokenShards shards = inputs.token_shards();
  return shards ? model::gathered(x_BLE.contiguous(), shards) : x_BLE;
}

at::Tensor logits_of(const PassContext& context, const at::Tensor& features_BE) {
  const at::NoGradGuard no_grad;
  const int last = static_cast<int>(context.model.units().size()) - 1;
  const std::vector<std::int64_t> none(static_cast<std::size_t>(features_BE.size(0)));
  const model::ModelInputs inputs{.batch = {},
                                  .positions_L = at::tensor(none, at::kLong),
                                  .attends = model::Attend(),
                                  .tensor_parallel = context.tensor_parallel};
  const model::TokenShards shards = inputs.token_shards();
  at::Tensor x_BLE = features_BE.unsqueeze(0);
  if (!shards) return context.model.run(last, context.use(last), x_BLE, inputs).squeeze(0);
  // Each rank along tp gives its features, and has the logits of its words for all of them.
  model::TensorParallel& tp = *shards.ranks;
  const model::EvenPart own = model::even_part(shards.tokens, tp.index(), tp.ranks());
  x_BLE = x_BLE.narrow(1, own.begin, own.size);
  const at::Tensor mine_BV = context.model.run(last, context.use(last), x_BLE, inputs).squeeze(0);
  std::vector<std::int64_t> words;
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < tp.ranks(); ++rank) {
    words.push_back(model::even_part(context.model.vocab_size(), rank, tp.ranks()).size);
    counts.push_back(words.back() * shards.tokens);
  }
  ARMILLARY_CHECK(mine_BV.size(1) == words[static_cast<std::size_t>(tp.index())]);
  const at::Tensor all = at::empty({context.model.vocab_size() * shards.tokens}, mine_BV.options());
  tp.all_gather(mine_BV.contiguous(), all, counts);
  std::vector<at::Tensor> logits_BV;
  std::int64_t next = 0;
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    logits_BV.push_back(all.narrow(0, next, counts[rank]).view({shards.tokens, words[rank]}));
    next += counts[rank];
  }
  return at::cat(logits_BV, 1);
}

}  // namespace armillary::serve
