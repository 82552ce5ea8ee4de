// engine.h: the flags that choose an engine, and ranks that run on it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "armillary/comm/communicator.h"
#include "armillary/host/launch/engine.h"

namespace armillary::cli {

/// Adds --engine, --rank and --master to a verb. `flags` must live as long as `verb`.
void add_engine_flags(CLI::App& verb, launch::EngineFlags& flags);

/// The engine that the flags, or the launcher of this process, ask for. @throws InvalidArgument as
/// launch::choose_engine.
launch::EngineChoice choose_engine(const launch::EngineFlags& flags,
                                   const launch::AskedWorld& request);

/// Runs `body` on `world` ranks: threads of this process, or the one rank that this process is. It
/// throws what the body threw, or CommError if another rank failed.
void run_ranks_on(const launch::EngineChoice& choice, int world, double timeout_s,
                  const std::function<void(comm::Communicator&)>& body);

}  // namespace armillary::cli
