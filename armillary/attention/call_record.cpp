// call_record.cpp: makes records of requests and the words of records.
//
// A record holds every option by value, tensors and mask as digests, so equal requests are equal
// bytes. Its text `problem` exists for errors alone and may be cut off.
#include "armillary/attention/call_record.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "armillary/core/error.h"
#include "armillary/core/spec.h"

namespace armillary::attention {

using proof::Digest;

namespace {

/// Lengths of a mask and its first bands: "48x48:0-48/0-48/-47..0"; a mask may have thousands.
std::string describe(const plan::Mask& mask) {
  constexpr std::size_t kMostBands = 4;
  std::string text = fmt::format("{}x{}", mask.q_len(), mask.kv_len());
  for (std::size_t b = 0; b < std::min(mask.bands().size(), kMostBands); ++b) {
    text += (b == 0 ? ":" : ";") + to_string(mask.bands()[b]);
  }
  if (mask.bands().size() > kMostBands) text += fmt::format(";..{}", mask.bands().size());
  return text;
}

/// Copies what fits and leaves at least one zero behind it; `to` is zero before.
template <std::size_t N>
void put(char (&to)[N], std::string_view text) {
  const std::size_t size = std::min(text.size(), N - 1);
  std::copy_n(text.begin(), size, to);
}

/// Digest of dtype, shape and values; 0 for no tensor. The device does not count: each rank may
/// have its own. A tensor on the device `meta`, which is refused anyway, has no values.
Digest digest_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  Digest bytes;
  if (!tensor.is_meta()) {
    const at::Tensor values = tensor.detach().cpu().contiguous();
    bytes = proof::digest_of({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  }
  return proof::digest_of(fmt::format("{} [{}] {}", at::toString(tensor.scalar_type()),
                                      fmt::join(tensor.sizes(), ","), to_string(bytes)));
}

CallRecord::Optional record_of(const std::optional<double>& value) {
  return {value.value_or(0), value.has_value()};
}

}  // namespace

std::string words_of(const plan::Problem& problem, const std::string& strategy) {
  return fmt::format(
      "version={} strategy={} layout={} wire={} dtype={} batch={} heads={} kv_heads={} "
      "head_dim={} value_dim={} return_lse={} mask={}",
      proof::version(), strategy, to_string(problem.layout), to_string(problem.transfer_dtype),
      to_string(problem.dtype), problem.batch, problem.heads, problem.kv_heads, problem.head_dim,
      problem.value_dim, problem.return_lse, describe(problem.mask));
}

runtime::KnownProblem new_problem(const plan::Problem& problem, const std::string& strategy_text,
                                  const std::optional<plan::Strategy>& choice) {
  runtime::KnownProblem known{.problem = problem,
                              .strategy_texts = {strategy_text},
                              .strategy = choice,
                              .key = {},
                              .words = {}};
  try {
    if (!known.strategy) known.strategy = plan::parse_strategy(strategy_text);
    known.key = proof::digest_of(problem, *known.strategy);
  } catch (const Error&) {  // prepare_call throws it again, where ranks are told of it
    known.key = proof::digest_of(strategy_text);
  }
  known.words = words_of(problem, known.strategy ? to_string(*known.strategy) : strategy_text);
  return known;
}

CallRecord record_of(const CallRequest& request) {
  const AttentionOptions& options = request.options;
  CallRecord record{.key = request.key,
                    .scale = request.scale,
                    .softcap = record_of(options.softcap),
                    .dropout = options.dropout.p,
                    .dropout_seed = options.dropout.seed,
                    .dropout_step = options.dropout.step,
                    .timeout_s = record_of(options.timeout_s),
                    .slopes = digest_of(options.alibi_slopes_H),
                    .sinks = digest_of(options.sinks_H),
                    .max_logit = options.return_max_logit,
                    .sequence = options.sequence,
                    .version = {},
                    .call = {},
                    .problem = {}};
  put(record.version, request.version);
  put(record.call, request.call);
  put(record.problem, request.problem);
  return record;
}

std::vector<std::string> words_of(const CallRecord& record) {
  std::vector<std::string> words;
  const auto add = [&](std::string_view name, const auto& value) {
    words.push_back(fmt::format("{}={}", name, value));
  };
  const auto add_optional = [&](std::string_view name, const CallRecord::Optional& number) {
    number.is_given != 0 ? add(name, number.value) : add(name, "none");
  };
  const auto add_digest = [&](std::string_view name, const Digest& digest) {
    add(name, digest == Digest{} ? "none" : "#" + to_string(digest));
  };
  // The first word that differs is what an error says, so causes come before their consequences.
  add("version", record.version);
  add("call", record.call);
  record.sequence != 0 ? add("sequence", fmt::format("#{:016x}", record.sequence))
                       : add("sequence", "none");
  add("scale", record.scale);
  add_optional("softcap", record.softcap);
  add("dropout", record.dropout);
  add("dropout.seed", record.dropout_seed);
  add("dropout.step", record.dropout_step);
  add_optional("timeout_s", record.timeout_s);
  add("max_logit", record.max_logit != 0);
  add_digest("alibi_slopes_H", record.slopes);
  add_digest("sinks_H", record.sinks);
  for (const std::string_view word : split(record.problem, ' ')) words.emplace_back(word);
  // For a difference behind the end of the text.
  add_digest("problem", record.key);
  return words;
}

}  // namespace armillary::attention
