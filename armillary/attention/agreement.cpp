#include "armillary/attention/agreement.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "armillary/comm/collectives.h"
#include "armillary/core/error.h"
#include "armillary/core/spec.h"

namespace armillary::attention {

using proof::Digest;

/// What a rank was asked for, as it travels: of one size on all ranks, compared as bytes.
struct CallRecord {
  Digest key;
  double scale;
  double softcap;  ///< 0 for none.
  double dropout;
  std::uint64_t dropout_seed;
  std::uint64_t dropout_step;
  double timeout_s;  ///< 0 for the communicator's.
  Digest slopes;     ///< 0 for none, like `sinks`.
  Digest sinks;
  std::uint64_t max_logit;
  char call[16];
  char problem[904];  ///< Asked::problem, cut off where it is longer.
};
static_assert(sizeof(CallRecord) == 1024 && std::is_trivially_copyable_v<CallRecord>);

namespace {

template <std::size_t N>
void put(char (&to)[N], std::string_view text) {
  const std::size_t size = std::min(text.size(), N - 1);
  std::copy_n(text.begin(), size, to);
}

/// Digest of dtype, shape and values; of what is no tensor on the CPU, that it is none.
Digest digest_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (!tensor.device().is_cpu()) return proof::digest_of(tensor.device().str());
  const at::Tensor values = tensor.detach().contiguous();
  const Digest bytes =
      proof::digest_of({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  return proof::digest_of(fmt::format("{} [{}] {}", at::toString(values.scalar_type()),
                                      fmt::join(values.sizes(), ","), to_string(bytes)));
}

CallRecord record_of(const Asked& asked) {
  const AttentionOptions& options = asked.options;
  CallRecord record{.key = asked.key,
                    .scale = asked.scale,
                    .softcap = options.softcap.value_or(0),
                    .dropout = options.dropout.p,
                    .dropout_seed = options.dropout.seed,
                    .dropout_step = options.dropout.step,
                    .timeout_s = options.timeout_s.value_or(0),
                    .slopes = digest_of(options.alibi_slopes_H),
                    .sinks = digest_of(options.sinks_H),
                    .max_logit = options.return_max_logit,
                    .call = {},
                    .problem = {}};
  put(record.call, asked.call);
  put(record.problem, asked.problem);
  return record;
}

/// A record as words `name=value`, the same names in the same order for every record.
std::vector<std::string> words(const CallRecord& record) {
  std::vector<std::string> words;
  const auto add = [&](std::string_view name, const auto& value) {
    words.push_back(fmt::format("{}={}", name, value));
  };
  const auto add_digest = [&](std::string_view name, const Digest& digest) {
    add(name, digest == Digest{} ? "none" : "#" + to_string(digest));
  };
  add("call", record.call);
  add("scale", record.scale);
  add("softcap", record.softcap);
  add("dropout", record.dropout);
  add("dropout.seed", record.dropout_seed);
  add("dropout.step", record.dropout_step);
  add("timeout_s", record.timeout_s);
  add("max_logit", record.max_logit != 0);
  add_digest("alibi_slopes_H", record.slopes);
  add_digest("sinks_H", record.sinks);
  for (const std::string_view word : split(record.problem, ' ')) words.emplace_back(word);
  add_digest("problem", record.key);  // for what differs behind the end of that
  return words;
}

/// Throws what the record of the rank before has and mine has not.
[[noreturn]] void refuse(const CallRecord& theirs, int before, const CallRecord& mine, int rank) {
  const std::vector<std::string> there = words(theirs);
  const std::vector<std::string> here = words(mine);
  const std::size_t shared = std::min(there.size(), here.size());
  std::size_t w = 0;
  while (w + 1 < shared && there[w] == here[w]) ++w;
  fail<InvalidArgument>(
      "attention: rank {} was asked for {}, rank {} for {}; all ranks must be asked for the same",
      before, there[w], rank, here[w]);
}

}  // namespace

/// The record of this rank and those of the ranks before, round after round.
struct Agreement::Exchange {
  comm::Communicator& comm;
  CallRecord mine;
  CallRecord theirs = {};
  int distance = 1;
  comm::Request requests[2] = {};

  Exchange(comm::Communicator& comm, const CallRecord& record) : comm(comm), mine(record) {
    start();
  }

  bool is_over() const { return distance >= comm.world(); }
  int before() const { return (comm.rank() + comm.world() - distance) % comm.world(); }

  void start() {
    if (is_over()) return;
    const comm::Strided out = comm::whole(std::span(&mine, 1));
    const comm::Strided in = comm::whole(std::span(&theirs, 1));
    const comm::Message both[] = {{.direction = comm::Direction::Send,
                                   .peer = (comm.rank() + distance) % comm.world(),
                                   .lane = comm::kCollectiveLane,
                                   .parts = {&out, 1}},
                                  {.direction = comm::Direction::Receive,
                                   .peer = before(),
                                   .lane = comm::kCollectiveLane,
                                   .parts = {&in, 1}}};
    comm.start(both, requests);
  }

  void compare() const {
    if (std::memcmp(&mine, &theirs, sizeof(CallRecord)) == 0) return;
    refuse(theirs, before(), mine, comm.rank());
  }
};

Agreement::Agreement(comm::Communicator& comm, const Asked& asked)
    : comm_(comm),
      timeout_s_(asked.options.timeout_s),
      exchange_(std::make_unique<Exchange>(comm, record_of(asked))) {}

Agreement::~Agreement() = default;

void Agreement::wait() {
  if (!exchange_) return;
  while (!exchange_->is_over()) {
    comm_.wait_all(exchange_->requests, timeout_s_);
    exchange_->compare();
    exchange_->distance *= 2;
    exchange_->start();
  }
  exchange_.reset();
}

void Agreement::compare_within(double seconds) {
  if (!exchange_ || exchange_->is_over()) return;
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::duration<double> most(seconds);
  while (!comm_.done(exchange_->requests[0]) || !comm_.done(exchange_->requests[1])) {
    if (std::chrono::steady_clock::now() - begin > most) return;
    std::this_thread::yield();
  }
  exchange_->compare();
}

}  // namespace armillary::attention
