#include "cli/inference_text.h"

#include <fmt/format.h>

#include "armillary/core/count_text.h"

namespace armillary::cli {

void print_inference(const std::string& model, const cost::Inference& of,
                     const cost::InferenceCost& cost, const sim::Cluster& cluster) {
  constexpr double kMilli = 1e-3;
  constexpr double kGib = 1 << 30;
  const cost::StepTime& prefill = cost.prefill;
  const cost::DecodeTime& decode = cost.decode;
  fmt::print("{} on {}: {} of {} over {}, cp {}, tp {}, {} and {}\n", model, cluster.name,
             count_of(of.sequences, "sequence"), count_of(of.prompt, "token"),
             count_of(of.cp * of.tp, "rank"), of.cp, of.tp, to_string(of.strategy),
             to_string(of.layout));
  fmt::print(
      "  time to first token {:>10.3f} s: products {:.3f}, attention {:.3f}, passes over "
      "activations {:.3f}, messages of tp {:.3f}\n",
      prefill.total(), prefill.products, prefill.attention, prefill.passes,
      prefill.tensor_parallel);
  fmt::print(
      "  time per token      {:>10.3f} ms: matrices {:.3f}, cache {:.3f}, exchange {:.3f}, "
      "messages of tp {:.3f}\n",
      decode.total() / kMilli, decode.matrices / kMilli, decode.cache / kMilli,
      decode.exchange / kMilli, decode.tensor_parallel / kMilli);
  fmt::print("  cache               {:>10.2f} GiB of a rank, {:.0f} bytes a token on all\n",
             cost.cache_bytes / kGib, cost::cache_bytes_of_token(of.model));
  fmt::print("  memory              {:>10.2f} GiB of {:.2f}, parameters {:.2f}\n",
             cost.memory.total() / kGib, cluster.device.memory_bytes / kGib,
             cost.memory.parameters / kGib);
  fmt::print("  longest prompt      {:>10} tokens in one pass; the cache has room for {}\n",
             cost.longest_prompt, cost.longest_context);
}

}  // namespace armillary::cli
