// rope_scaling.cpp: the text of a scaling by core/spec.h, and one function for each kind, in fp64.
// transformers computes frequencies in fp32, so the two differ by its rounding.
#include "armillary/model/rope_scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <system_error>

#include "armillary/core/error.h"
#include "armillary/core/names.h"
#include "armillary/core/spec.h"
#include "armillary/core/user_text.h"

namespace armillary::model {
namespace {

constexpr const char* kRopeKey = "recipe: model.rope_scaling";
constexpr double kMostRopeNumber = std::numeric_limits<float>::max();

/// A finite number of at least `least`.
double rope_number(std::string_view key, std::string_view text, double least) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  // Negated, so that NaN is refused too.
  if (error != std::errc() || stop != end || !(number >= least && number <= kMostRopeNumber)) {
    fail<InvalidArgument>("{} {}: {} given; a number from {} on is required", kRopeKey, key,
                          quote(text), least);
  }
  return number;
}

/// The arguments of one kind.
class RopeArguments {
 public:
  RopeArguments(const Spec& spec, std::initializer_list<std::string_view> keys)
      : arguments_(fmt::format("{} {}", kRopeKey, spec.name), spec.arguments, keys) {
    arguments_.refuse_values();
  }

  double number(std::string_view key, double least) const {
    const auto text = arguments_.find(key);
    if (!text) {
      fail<InvalidArgument>("{}: no {} given; {}=NUMBER is required", arguments_.where(), key, key);
    }
    return rope_number(key, *text, least);
  }
  double number(std::string_view key, double least, double otherwise) const {
    return arguments_.find(key) ? number(key, least) : otherwise;
  }
  std::int64_t original() const {
    return arguments_.integer("original", {.min = 2, .max = 1LL << 40});
  }
  std::optional<double> attention() const {
    if (!arguments_.find("attention")) return std::nullopt;
    return number("attention", 0);
  }
  bool truncate() const {
    const std::string_view text = arguments_.find("truncate").value_or("true");
    if (text == "true" || text == "false") return text == "true";
    fail<InvalidArgument>("{} truncate: {} given; true or false is required", arguments_.where(),
                          quote(text));
  }
  /// `1;1.5;2`
  std::vector<double> divisors(std::string_view key) const {
    const auto text = arguments_.find(key);
    if (!text) {
      fail<InvalidArgument>("{}: no {} given; {}=NUMBER;NUMBER;.. is required", arguments_.where(),
                            key, key);
    }
    std::vector<double> all;
    for (const std::string_view part : split(*text, ';')) {
      all.push_back(rope_number(key, part, std::numeric_limits<float>::min()));
    }
    return all;
  }

 private:
  Arguments arguments_;
};

/// Adds `key=value` to a text, the first behind a colon.
void add_part(std::string& text, const std::string& part) {
  text += text.find(':') == std::string::npos ? ':' : ',';
  text += part;
}

double default_attention(const RopeScaling& scaling) {
  if (scaling.factor <= 1) return 1;
  if (scaling.kind == RopeKind::Yarn) return 0.1 * std::log(scaling.factor) + 1;
  return std::sqrt(1 + std::log(scaling.factor) / std::log(static_cast<double>(scaling.original)));
}

void scale_llama3(const RopeScaling& scaling, std::vector<double>& frequencies) {
  const auto original = static_cast<double>(scaling.original);
  for (double& frequency : frequencies) {
    const double turns = original * frequency / (2 * std::numbers::pi);  // within S tokens
    if (turns > scaling.high) continue;
    if (turns < scaling.low) {
      frequency /= scaling.factor;
    } else {
      const double smooth = (turns - scaling.low) / (scaling.high - scaling.low);
      frequency *= (1 - smooth) / scaling.factor + smooth;
    }
  }
}

void scale_yarn(const RopeScaling& scaling, const RotaryShape& shape,
                std::vector<double>& frequencies) {
  const auto dims = static_cast<double>(shape.head_dim);
  // The dim whose pair turns so often within S tokens.
  const auto dim_of = [&](double turns) {
    return dims * std::log(static_cast<double>(scaling.original) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(shape.theta));
  };
  double low = dim_of(scaling.beta_fast);
  double high = dim_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= ramp / scaling.factor + (1 - ramp);
  }
}

}  // namespace

const std::vector<std::string>& rope_kinds() {
  static const std::vector<std::string> names{"none",   "linear", "dynamic",
                                              "llama3", "yarn",   "longrope"};
  return names;
}

RopeScaling parse_rope_scaling(std::string_view text) {
  const Spec spec = parse_spec(text);
  const std::vector<std::string>& kinds = rope_kinds();
  const std::vector<std::string_view> names(kinds.begin(), kinds.end());
  RopeScaling scaling;
  scaling.kind = static_cast<RopeKind>(parse_choice(kRopeKey, spec.name, names));
  switch (scaling.kind) {
    case RopeKind::None:
      RopeArguments(spec, {});
      break;
    case RopeKind::Linear:
      scaling.factor = RopeArguments(spec, {"factor"}).number("factor", 1);
      break;
    case RopeKind::Dynamic: {
      const RopeArguments arguments(spec, {"factor", "original"});
      scaling.factor = arguments.number("factor", 1);
      scaling.original = arguments.original();
      break;
    }
    case RopeKind::Llama3: {
      const RopeArguments arguments(spec, {"factor", "low", "high", "original"});
      scaling.factor = arguments.number("factor", 1);
      scaling.low = arguments.number("low", 0);
      scaling.high = arguments.number("high", 0);
      scaling.original = arguments.original();
      if (scaling.high > scaling.low) break;
      fail<InvalidArgument>("{} llama3: high {} with low {}; above low is required", kRopeKey,
                            scaling.high, scaling.low);
    }
    case RopeKind::Yarn: {
      const RopeArguments arguments(
          spec, {"factor", "original", "attention", "beta_fast", "beta_slow", "truncate"});
      constexpr double kLeastBeta = 1e-6;
      scaling.factor = arguments.number("factor", 1);
      scaling.original = arguments.original();
      scaling.attention = arguments.attention();
      scaling.beta_fast = arguments.number("beta_fast", kLeastBeta, scaling.beta_fast);
      scaling.beta_slow = arguments.number("beta_slow", kLeastBeta, scaling.beta_slow);
      scaling.truncate = arguments.truncate();
      if (scaling.beta_fast >= scaling.beta_slow) break;
      fail<InvalidArgument>("{} yarn: beta_fast {} with beta_slow {}; at least that is required",
                            kRopeKey, scaling.beta_fast, scaling.beta_slow);
    }
    case RopeKind::LongRope: {
      const RopeArguments arguments(spec, {"original", "short", "long", "factor", "attention"});
      scaling.factor = arguments.number("factor", 1, 1);
      scaling.original = arguments.original();
      scaling.attention = arguments.attention();
      scaling.short_factors = arguments.divisors("short");
      scaling.long_factors = arguments.divisors("long");
      break;
    }
  }
  return scaling;
}

std::string to_string(const RopeScaling& scaling) {
  const RopeScaling defaults;
  std::string text = rope_kinds()[static_cast<std::size_t>(scaling.kind)];
  const auto add = [&](const char* key, const auto& value, const auto& otherwise) {
    if (value != otherwise) add_part(text, fmt::format("{}={}", key, value));
  };
  // `factor` is a default only where it may be left out.
  const bool needs_factor = scaling.kind != RopeKind::None && scaling.kind != RopeKind::LongRope;
  add("factor", scaling.factor, needs_factor ? -1 : defaults.factor);
  add("original", scaling.original, defaults.original);
  if (scaling.kind == RopeKind::Llama3) {
    add_part(text, fmt::format("low={},high={}", scaling.low, scaling.high));
  }
  if (scaling.attention) add_part(text, fmt::format("attention={}", *scaling.attention));
  add("beta_fast", scaling.beta_fast, defaults.beta_fast);
  add("beta_slow", scaling.beta_slow, defaults.beta_slow);
  if (!scaling.truncate) add_part(text, "truncate=false");
  if (scaling.kind == RopeKind::LongRope) {
    add_part(text, fmt::format("short={},long={}", fmt::join(scaling.short_factors, ";"),
                               fmt::join(scaling.long_factors, ";")));
  }
  return text;
}

void check_rotary_shape(const RopeScaling& scaling, const RotaryShape& shape) {
  const auto half = static_cast<std::size_t>(shape.head_dim / 2);
  for (const auto* divisors : {&scaling.short_factors, &scaling.long_factors}) {
    if (scaling.kind != RopeKind::LongRope || divisors->size() == half) continue;
    fail<InvalidArgument>(
        "{} longrope: {} divisors given; {}, half of a head of {}, are required in short and in "
        "long",
        kRopeKey, divisors->size(), half, shape.head_dim);
  }
  if (scaling.kind == RopeKind::Dynamic && shape.head_dim < 4) {
    fail<InvalidArgument>("{} dynamic: heads of {} dims; at least 4 are required", kRopeKey,
                          shape.head_dim);
  }
  if (scaling.kind == RopeKind::Yarn && shape.theta <= 1) {
    fail<InvalidArgument>("{} yarn: model.rope_theta {}; above 1 is required; nearest: 10000",
                          kRopeKey, shape.theta);
  }
}

RotaryFrequencies rotary_frequencies(const RopeScaling& scaling, const RotaryShape& shape) {
  check_rotary_shape(scaling, shape);
  const auto dims = static_cast<double>(shape.head_dim);
  const bool is_long = shape.seq_len > scaling.original;
  double theta = shape.theta;
  if (scaling.kind == RopeKind::Dynamic && is_long) {
    const double stretch =
        static_cast<double>(shape.seq_len) / static_cast<double>(scaling.original);
    theta *= std::pow(scaling.factor * stretch - (scaling.factor - 1), dims / (dims - 2));
  }
  RotaryFrequencies frequencies;
  for (std::int64_t i = 0; i < shape.head_dim / 2; ++i) {
    frequencies.of_pair.push_back(std::pow(theta, -2 * static_cast<double>(i) / dims));
  }
  switch (scaling.kind) {
    case RopeKind::None:
    case RopeKind::Dynamic:
      break;
    case RopeKind::Linear:
      for (double& frequency : frequencies.of_pair) frequency /= scaling.factor;
      break;
    case RopeKind::Llama3:
      scale_llama3(scaling, frequencies.of_pair);
      break;
    case RopeKind::Yarn:
      scale_yarn(scaling, shape, frequencies.of_pair);
      frequencies.scale = scaling.attention.value_or(default_attention(scaling));
      break;
    case RopeKind::LongRope: {
      const auto& divisors = is_long ? scaling.long_factors : scaling.short_factors;
      for (std::size_t i = 0; i < divisors.size(); ++i) frequencies.of_pair[i] /= divisors[i];
      frequencies.scale = scaling.attention.value_or(default_attention(scaling));
      break;
    }
  }
  return frequencies;
}

}  // namespace armillary::model
