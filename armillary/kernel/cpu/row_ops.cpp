// Merge, add and delta of strided tensors. Rows are collected in chunks of addresses, which kernels
// of the instruction set process; jobs of 1024 rows are dealt out to threads.
#include "armillary/kernel/cpu/row_ops.h"

#include <algorithm>

#include "armillary/kernel/cpu/stages.h"

namespace armillary::kernel::cpu {
namespace {

/// Calls set(chunk, i, batch, head, row) for each row of a chunk, then run(chunk, width), until all
/// rows are done. Rows are visited with heads innermost, as they lie in memory.
template <class Chunk, class Set>
void in_chunks(const Team& team, const RowShape& shape, void (*run)(const Chunk&, int),
               const Set& set) {
  const std::int64_t rows = shape.batch * shape.rows * shape.heads;
  constexpr std::int64_t kCount = Chunk::kCount;
  constexpr std::int64_t kChunks = 16;  // 1024 rows a job
  const std::int64_t jobs = (rows + kCount * kChunks - 1) / (kCount * kChunks);
  deal_out(team, jobs, [&](std::int64_t job) {
    const std::int64_t last = std::min(rows, (job + 1) * kCount * kChunks);
    for (std::int64_t first = job * kCount * kChunks; first < last; first += kCount) {
      // Addresses of up to kCount rows, then one kernel call for them.
      Chunk chunk;
      chunk.count = static_cast<int>(std::min(kCount, last - first));
      // Divide once a chunk; then count heads, rows and batch entries up.
      std::int64_t head = first % shape.heads;
      std::int64_t row = first / shape.heads % shape.rows;
      std::int64_t batch = first / shape.heads / shape.rows;
      for (int i = 0; i < chunk.count; ++i) {
        set(chunk, i, batch, head, row);
        if (++head < shape.heads) continue;
        head = 0;
        if (++row < shape.rows) continue;
        row = 0;
        ++batch;
      }
      run(chunk, shape.width);
    }
  });
}

}  // namespace

// kernel::merge, add and delta: which addresses a row has.
void merge(const IsaKernels& isa, const Team& team, const MergeArgs& call) {
  in_chunks<MergeRows>(team, call.shape, isa.merge[index_of(call.other_element)],
                       [&](MergeRows& chunk, int i, auto batch, auto head, auto row) {
                         chunk.out[i] = at(call.out, batch, head, row);
                         chunk.lse[i] = at(call.lse, batch, head, row);
                         chunk.other_out[i] =
                             at(call.other_out, call.other_element, batch, head, row);
                         chunk.other_lse[i] = at(call.other_lse, batch, head, row);
                       });
}

void add(const IsaKernels& isa, const Team& team, const AddArgs& call) {
  in_chunks<AddRows>(team, call.shape, isa.add[index_of(call.part_element)],
                     [&](AddRows& chunk, int i, auto batch, auto head, auto row) {
                       chunk.sum[i] = at(call.sum, batch, head, row);
                       chunk.part[i] = at(call.part, call.part_element, batch, head, row);
                     });
}

void delta(const IsaKernels& isa, const Team& team, const DeltaArgs& call) {
  in_chunks<DeltaRows>(team, call.shape, isa.delta[index_of(call.element)],
                       [&](DeltaRows& chunk, int i, auto batch, auto head, auto row) {
                         chunk.dout[i] = at(call.dout, call.element, batch, head, row);
                         chunk.out[i] = at(call.out, call.element, batch, head, row);
                         chunk.delta[i] = at(call.delta, batch, head, row);
                       });
}

}  // namespace armillary::kernel::cpu
