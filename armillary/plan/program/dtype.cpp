// dtype.cpp: element types by tables in the order of the enum, so that a type is an index.
#include "armillary/plan/program/dtype.h"

#include <array>

#include "armillary/core/spec.h"

namespace armillary::plan {
namespace {

constexpr std::array<std::string_view, 4> kDtypeNames = {"fp64", "fp32", "bf16", "fp16"};

}  // namespace

std::int64_t bytes_of(Dtype dtype) {
  constexpr std::array<std::int64_t, 4> kBytes{8, 4, 2, 2};
  return kBytes[static_cast<std::size_t>(dtype)];
}

/// Sums of bf16 and fp16 would lose small terms, so they are fp32 like those of fp32.
Dtype accumulator(Dtype dtype) {
  return dtype == Dtype::F64 ? Dtype::F64 : Dtype::F32;
}

std::string to_string(Dtype dtype) {
  return std::string(kDtypeNames[static_cast<std::size_t>(dtype)]);
}

Dtype parse_dtype(std::string_view text) {
  return static_cast<Dtype>(parse_choice("dtype", text, kDtypeNames));
}

}  // namespace armillary::plan
