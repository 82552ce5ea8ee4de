"""How much slower the tuner's choice is than the best that was measured.

Twenty problems on emulated hosts: network namespaces of this machine whose links are limited (root, `ip` and
`tc` required; removed at the end, also after a failure). On each place `armillary calibrate` describes the
ranks as a cluster; then the tuner chooses by simulation, and its best candidates run in turns with the
fastest of every other strategy. Regret is the measured time of its choice over the least measured time,
"others" how many were measured beside it. At the end: the median and the worst regret. In simulation,
armillary/predict/tune/search_test.cpp compares the tuner with an exhaustive search on 200 problems."""

import argparse
import json
import pathlib
import signal
import statistics
import sys
import tempfile

from bench.contest import PROGRAM, RefusedError, Table, add_flags, at_least_one, number, output, run
from bench.live import CORES, burst_of, link_rate, words
from bench.overlap import emulated_hosts, on_mpi

PLACES = ("hosts2", "hosts4")
RATES = ("200mbit", "1gbit")
# Mask, query heads, KV heads, tokens of a rank.
PROBLEMS = (
    ("causal", 4, 4, 1024),
    ("full", 4, 4, 1024),
    ("causal", 8, 2, 1024),
    ("window:left=300,right=0", 4, 4, 1024),
    ("causal", 4, 4, 256),
)
HEAD_DIM = 64


def tuned(start, world, path, problem, args):
    """The evaluations of a tuning with --measure, in the order of its answer."""
    mask, heads, kv_heads, tokens = problem
    flags = {"world": world, "seq": tokens * world, "heads": heads, "kv-heads": kv_heads, "mask": mask}
    flags |= {"head-dim": HEAD_DIM, "dtype": "fp32", "cluster": path, "pass": args.passes}
    flags |= {"candidates": args.candidates, "seconds": args.seconds or 2}
    command = [PROGRAM, "tune", "--measure", "--no-cache", "--json"]
    for name, value in flags.items():
        command += [f"--{name}", value]
    return json.loads(start(words(command)))["evaluations"]


def row(evaluations, problem, place, rate, world):
    """A row of the table: the choice by simulation beside the best of those measured."""
    measured = [evaluation for evaluation in evaluations if "measured_s" in evaluation]
    simulated = [evaluation for evaluation in measured if "time_s" in evaluation]
    if not simulated:
        raise RefusedError("no candidate was both simulated and measured")
    choice = min(simulated, key=lambda evaluation: evaluation["time_s"])
    best = min(measured, key=lambda evaluation: evaluation["measured_s"])
    mask, heads, kv_heads, tokens = problem
    return {
        "place": place,
        "rate": rate,
        "world": world,
        "problem": f"{mask}, {heads}/{kv_heads} x {HEAD_DIM}",
        "tokens": tokens,
        "chosen": f"{choice['strategy']}, {choice['layout']}",
        "chosen_s": choice["measured_s"],
        "simulated_s": choice["time_s"],
        "best": f"{best['strategy']}, {best['layout']}",
        "best_s": best["measured_s"],
        "others": len(measured) - 1,
        "regret": choice["measured_s"] / best["measured_s"],
    }


def measure(start, place, rate, world, args, table):
    regrets = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "cluster.toml"
        ranks = ["--world", world, "--ranks-per-node", 1, "--cores", CORES]
        shape = ["--heads", 4, "--head-dim", HEAD_DIM, "--dtype", "fp32", "--tokens", 2048]
        start(words([PROGRAM, "calibrate", *ranks, *shape, "--out", path]))
        for problem in PROBLEMS[: args.problems]:
            line = row(tuned(start, world, path, problem, args), problem, place, rate, world)
            table.add(line)
            regrets.append(line["regret"])
    return regrets


COLUMNS = {
    "place": lambda row: row["place"],
    "rate": lambda row: row["rate"],
    "problem": lambda row: row["problem"],
    "tokens a rank": lambda row: f"{row['tokens']:,}",
    "chosen": lambda row: row["chosen"],
    "simulated, ms": number("simulated_s", "{:.2f}", 1e3),
    "measured, ms": number("chosen_s", "{:.2f}", 1e3),
    "best measured": lambda row: row["best"],
    "ms": number("best_s", "{:.2f}", 1e3),
    "others": lambda row: str(row["others"]),
    "regret": number("regret", "{:.3f}"),
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench regret", description=__doc__))
    parser.add_argument(
        "--places", nargs="+", default=list(PLACES), choices=("threads", *PLACES), help="[both hosts]"
    )
    parser.add_argument("--rates", type=link_rate, nargs="+", default=list(RATES), help="[both]")
    parser.add_argument("--problems", type=at_least_one, default=len(PROBLEMS), help="of each place and rate")
    parser.add_argument("--candidates", type=at_least_one, default=12, help="measured for each [12]")
    parser.add_argument("--passes", default="both", choices=("forward", "both"))
    parser.add_argument("--limit", type=at_least_one, default=600, help="seconds of a command at most [600]")
    args = parser.parse_args()
    if args.quick:
        args.places, args.rates, args.problems = args.places[:1], args.rates[-1:], 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # hosts are removed then
    table = Table(args.json, COLUMNS)
    regrets = []
    for place in args.places:
        if place == "threads":
            regrets += measure(lambda command: output(command, args.limit), place, None, 2, args, table)
            continue
        emulated = emulated_hosts()
        count = int(place.removeprefix("hosts"))
        for rate in args.rates:
            with emulated.Hosts(count, rate, burst_of(rate)) as hosts:

                def start(command, hosts=hosts, count=count):
                    return on_mpi(hosts, count, command, args.limit)

                regrets += measure(start, place, rate, count, args, table)
    if not args.json:
        middle = statistics.median(regrets)
        print(f"\n{len(regrets)} problems: median regret {middle:.3f}, worst {max(regrets):.3f}")


if __name__ == "__main__":
    run(main)
