// every_strategy.h: all strategies that can be asked for by name, for tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/strategies/strategy.h"

namespace armillary::plan {

/// Every strategy that solves the problem: those of the tables, and some with keys that tables
/// leave out.
inline std::vector<std::string> every_strategy(const Problem& problem) {
  std::vector<std::string> names;
  for (const Strategy& strategy : legal_strategies(problem)) names.push_back(to_string(strategy));
  for (const char* more :
       {"ring:backward=q", "ulysses:qkv=packed", "usp:qkv=packed,u=2", "startrail:c=1",
        "tokenring:inner=ring,nodes=2,tiles=stay", "grid:col=bidirectional,row=ring,rk=2,rq=3,u=1",
        "grid:col=gather,rk=2,row=ring,rq=2,u=1",
        "grid:col=double_ring,nest=rk-rq-u,rk=2,row=bidirectional,rq=4,u=1,window=2",
        "grid:nest=rq-u-rk,rk=2,row=bidirectional,rq=2,u=2", "grid:nest=rk-u-rq,rk=3,rq=2,u=2",
        "grid:nest=rq-rk-u,rk=4,row=ring,rq=1,u=2", "usp:backward=q,inner=ring,u=2",
        "grid:backward=q,col=double_ring,nest=rk-rq-u,rk=2,row=bidirectional,rq=4,u=1,window=2",
        "grid:backward=q,nest=rk-u-rq,rk=3,rq=2,u=2",
        "grid:backward=kv,nest=rq-rk-u,rk=4,row=ring,rq=1,u=2"}) {
    try {
      check_legal(problem, parse_strategy(more));
      names.emplace_back(more);
    } catch (const InvalidArgument&) {  // for another world or other heads
    }
  }
  return names;
}

}  // namespace armillary::plan
