"""How soon all ranks end after a fault, at random moments: one rank is killed, or stopped past the deadline.

Each row is so many training runs in a row over three ranks that are processes. A fault strikes a random
rank at a random moment: killed are ranks that still start, too; stopped ones have taken a step, for the time
that others take to start is theirs. Seconds go from the fault to the end of the last process; a stopped rank
has to be noticed at the deadline first. `named` counts the runs
whose line of the cause names the rank, `left` what they left: processes, shared memory, temporary files,
sockets. Ranks that are threads are killed together and stopped together, so nobody is there to name one or to
miss one: they are only killed. The exit code is 1 if any run left something, ended with 0, came later than
the bound, or named another rank."""

import argparse
import importlib.util
import json
import pathlib
import random
import re
import signal
import statistics
import sys
import tempfile
import time

from bench.contest import ROOT, RefusedError, Table, add_flags, run

WORLD = 3
DEADLINE_S = 2
ENGINES = ("threads", "mpi", "c10d")
FAULTS = {"killed": (signal.SIGKILL, 1), "stopped": (signal.SIGSTOP, DEADLINE_S + 1)}
SPREAD_S = {"killed": 4, "stopped": 1}  # moments of faults
COLUMNS = {
    "engine": lambda row: row["engine"],
    "a rank of 3 is": lambda row: row["fault"],
    "runs": lambda row: row["runs"],
    "bound s": lambda row: row["bound_s"],
    "median s": lambda row: f"{row['median_s']:.2f}",
    "longest s": lambda row: f"{row['longest_s']:.2f}",
    "later than the bound": lambda row: row["late"],
    "exit code 0": lambda row: row["succeeded"],
    "named": lambda row: "-" if row["named"] is None else row["named"],
    "left": lambda row: row["left"],
}


def fault_runs():
    """The module of tests/faults that makes such runs."""
    spec = importlib.util.spec_from_file_location("runs", ROOT / "tests" / "faults" / "runs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["runs"] = module
    spec.loader.exec_module(module)
    return module


def one_run(runs, engine, fault, moments):
    """The ending of a run with a fault at a random moment, and whether its cause names the rank."""
    number, _ = FAULTS[fault]
    with (
        tempfile.TemporaryDirectory(prefix="armillary-fault-") as folder,
        runs.Run(pathlib.Path(folder), engine, WORLD, deadline_s=DEADLINE_S) as struck,
    ):
        struck.wait_for_ranks()
        if fault == "stopped":
            struck.wait_for_step(1)
        time.sleep(moments.random() * SPREAD_S[fault])
        rank = moments.randrange(WORLD)
        pid = struck.strike(rank, number)
        steps = struck.steps()
        ending = struck.end()
    is_named = re.search(rf"rank {rank} \(host \S+, pid {pid}\b", ending.cause()) is not None
    return ending, is_named or engine == "threads", {"rank": rank, "after_steps": steps}


def measure(runs, engine, fault, count, seed):
    """The row of one engine and fault. Runs that break a promise are printed to standard error."""
    moments = random.Random(f"{seed} {engine} {fault}")
    bound = FAULTS[fault][1]
    endings, name_count = [], 0
    for number in range(count):
        ending, is_named, where = one_run(runs, engine, fault, moments)
        endings.append(ending)
        name_count += is_named
        if ending.left or ending.code == 0 or ending.seconds > bound or not is_named:
            told = {"run": number, "seconds": ending.seconds, "code": ending.code, "left": ending.left}
            print(json.dumps(told | where | {"output": ending.output[-2000:]}), file=sys.stderr)
    seconds = [ending.seconds for ending in endings]
    return {
        "engine": engine,
        "fault": fault,
        "runs": count,
        "bound_s": bound,
        "median_s": statistics.median(seconds),
        "longest_s": max(seconds),
        "late": sum(one > bound for one in seconds),
        "succeeded": sum(ending.code == 0 for ending in endings),
        "named": None if engine == "threads" else name_count,
        "left": sum(len(ending.left) for ending in endings),
    }


def broken(rows):
    """The promises that these rows break, as text; empty if they break none."""
    lacks = {
        "left something behind": sum(row["left"] for row in rows),
        "ended with 0": sum(row["succeeded"] for row in rows),
        "ended later than the bound": sum(row["late"] for row in rows),
        "did not name the rank": sum(row["runs"] - row["named"] for row in rows if row["named"] is not None),
    }
    return ", ".join(f"{count} {what}" for what, count in lacks.items() if count)


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench faults", description=__doc__))
    parser.add_argument("--kills", type=int, help="runs with a killed rank, on each engine [50]")
    parser.add_argument("--stops", type=int, help="runs with a stopped rank [20]")
    parser.add_argument("--engine", help="on one engine alone: threads, mpi or c10d")
    parser.add_argument("--seed", default="1", help="another one draws other moments [1]")
    args = parser.parse_args()
    runs = fault_runs()
    kills = args.kills if args.kills is not None else 5 if args.quick else 50
    stops = args.stops if args.stops is not None else 3 if args.quick else 20
    table = Table(args.json, COLUMNS)
    if args.engine not in (None, *ENGINES):
        raise RefusedError(f"--engine {args.engine}; threads, mpi or c10d is required", 2)
    rows = []
    for engine in [args.engine] if args.engine else ENGINES:
        if reason := runs.why_not(engine):
            raise RefusedError(reason)
        for fault, count in (("killed", kills), ("stopped", stops)):
            if count > 0 and (engine, fault) != ("threads", "stopped"):
                rows.append(measure(runs, engine, fault, count, args.seed))
                table.add(rows[-1])
    total = sum(row["runs"] for row in rows)
    print(
        f"{total} runs; {broken(rows) or 'all ended in time, named the rank and left nothing'}",
        file=sys.stderr,
    )
    if broken(rows):
        sys.exit(1)


if __name__ == "__main__":
    run(main)
