// json.h: a plan as JSON, for other programs and other languages.
//
//   {"format_version":4,"strategy":"ring","pass":"forward",
//    "problem":{"world":2,"batch":1,"heads":4,"kv_heads":2,"head_dim":64,"value_dim":64,
//               "dtype":"bf16","return_lse":false,"wire":"accumulator","layout":"contiguous",
//               "mask":{"q_len":8,"kv_len":8,"bands":[{"q":[0,8],"k":[0,8],"lo":-7,"hi":0}]}},
//    "blocks":{"q":[{"owner":0,"runs":[{"begin":0,"count":4,"step":1,"width":1}]}, ..],"kv":[..]},
//    "ranks":[{"rank":0,
//              "slots":[{"bytes":1024,"external":true}, ..],
//              "tiles":[{"tensor":"k","partial":false,"heads":[0,2],"blocks":[0],"slot":1,
//                        "narrow":false}, ..],
//              "inputs":[0,1,2],"outputs":[3],"saved":[0,1,2,3,4],
//              "ops":[{"op":"send","lane":1,"step":0,"peer":1,
//                      "operands":{"src":{"tile":1,"heads":[0,2],"blocks":[0]}}}, ..]}, ..]}
//
// Ranges are half-open pairs. Names are those that `to_string` prints. `peer` is there for send and
// recv only, `collective` only if the op belongs to one; `init_q`, `init_kv` and `zero_copy` only
// if they are true. A message of several views has operands src, src1, src2 .. or dst, dst1 ... The
// mask is written as its bands, whatever it was made from. Numbers are 64-bit integers.
#pragma once

#include <string>
#include <string_view>

#include "armillary/plan/plan.h"

namespace armillary::plan {

/// The version is raised when a reader of the old format could misunderstand the new one.
inline constexpr int kJsonFormatVersion = 4;

/// One line of text without a newline. Requires that every op has as many views as it `takes`.
/// (1) parse_json(to_json(plan)) == plan, also for plans that `verify` refuses.
std::string to_json(const Plan& plan);
std::string to_json(const Problem& problem);  ///< The object of the key `problem`.

/// (2) Parsing is strict: it refuses a key that is missing, doubled or not known, a value of
/// another type or out of range, and another format version. (3) The problem is validated; the
/// programs are not checked, that is the task of `verify`.
/// @throws InvalidArgument naming the place: `parse_json: ranks[0].ops[3].lane is "x"; an integer
/// ...`.
Plan parse_json(std::string_view text);

}  // namespace armillary::plan
