#include <algorithm>

#include "armillary/kernel/cpu/block.h"
#include "armillary/kernel/cpu/rounds.h"

namespace armillary::kernel::cpu {

void merge(const Tiles& isa, const Team& team, const MergeCall& call) {
  const std::int64_t rows = call.batch * call.rows * call.heads;
  constexpr std::int64_t kCount = MergeRows::kCount;
  constexpr std::int64_t kChunks = 16;  // 1024 rows a job
  const std::int64_t jobs = (rows + kCount * kChunks - 1) / (kCount * kChunks);
  deal_out(team, jobs, [&](std::int64_t job) {
    const std::int64_t last = std::min(rows, (job + 1) * kCount * kChunks);
    for (std::int64_t first = job * kCount * kChunks; first < last; first += kCount) {
      MergeRows chunk;
      chunk.count = static_cast<int>(std::min(kCount, last - first));
      std::int64_t head = first % call.heads;
      std::int64_t row = first / call.heads % call.rows;
      std::int64_t batch = first / call.heads / call.rows;
      for (int i = 0; i < chunk.count; ++i) {
        chunk.out[i] = at(call.out, batch, head, row);
        chunk.lse[i] = at(call.lse, batch, head, row);
        chunk.other_out[i] = at(call.other_out, batch, head, row);
        chunk.other_lse[i] = at(call.other_lse, batch, head, row);
        if (++head < call.heads) continue;
        head = 0;
        if (++row < call.rows) continue;
        row = 0;
        ++batch;
      }
      isa.merge(chunk, call.width);
    }
  });
}

}  // namespace armillary::kernel::cpu
