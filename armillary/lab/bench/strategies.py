"""Causal attention over two ranks: our strategies on threads or, with --engine, on processes; and what a
user could pick instead on processes.

The others run on Gloo over loopback, one thread each: a zigzag ring and Ulysses written plainly, PyTorch's
context parallel with the CPU kernel handed in, yunchang with the CPU kernel patched in (forward only). All
results are checked first; then all take turns. Efficiency is our one rank's time for the whole sequence,
halved, over the time of two ranks. "over best other" is the time of the fastest of the others over ours."""

import argparse

from bench.contest import (
    ENGINES,
    Budget,
    Table,
    add_flags,
    at_least_one,
    counts,
    left_out,
    number,
    on_engine,
    peer,
    percent,
    program,
    results,
    run,
    seconds_of,
    short,
)

STRATEGIES = (
    "ring",
    "usp:u=2",
    "ulysses",
    "grid:u=1,rq=1,rk=2",
    "allgather",
    "startrail:c=1",
    "tokenring",
)
PASSES = ("forward", "forward+backward")


DEADLINE_S = 3600  # of the others' checks and turns: attention over 16,384 tokens takes long
COMMON = ("isa", "engine", "dtype", "head_dim", "tokens", "heads", "mask", "world")
TIMES = ("seconds", "gflops", "of_peak", "efficiency", "efficiency_busy", "max_error")


def measure(args, tokens, seconds):
    """The rows of one length: one for every pass, strategy and peer."""
    shape = ["--tokens", tokens, "--heads", args.heads, "--head-dim", args.head_dim, "--dtype", args.dtype]
    strategy_flags = [part for strategy in STRATEGIES for part in ("--strategy", strategy)]
    others = peer("gloo_attention", "--timeout", DEADLINE_S, *shape)
    limits = ["--seconds", seconds, "--deadline", DEADLINE_S]
    ours = on_engine(
        args.engine, 2, program("layer", "--no-kernels", *shape, *strategy_flags, *others, *limits)
    )
    *lines, turns = results(ours)
    for direction in PASSES:
        ours = [line for line in lines if line["pass"] == direction]
        yield from rows(ours, list(other_rows(ours[0], turns, direction)))


def row_of(line, direction, who):
    """The keys that all rows of one length and pass have, from a result of ours."""
    common = {key: line[key] for key in COMMON}
    return {"bench": "strategies", **common, **counts(line), "peak_gflops": line["peak_gflops"]} | {
        "pass": direction,
        "who": who,
    }


def rows(ours, others):
    """All rows of one pass: ours, compared with the fastest of the others, then the others."""
    measured = {row["who"]: row["seconds"] for row in others if "seconds" in row}
    for line in ours:
        row = row_of(line, line["pass"], line["strategy"]) | {"ours": True}
        row |= {key: line[key] for key in TIMES}
        if measured:
            row["best_other"] = min(measured, key=measured.get)
            row["over_best_other"] = min(measured.values()) / row["seconds"]
        yield row
    yield from others


def other_rows(line, turns, direction):
    """The rows of the peers in one pass: times against those of one of our ranks, or reasons."""
    (gloo,) = turns["contenders"]
    facts = gloo["facts"]
    flops = line["gflops"] * line["seconds"]  # billions, the same for all
    for method in facts.get("methods", ["processes on Gloo"]):
        row = row_of(line, direction, method) | {"ours": False}
        side = f"{method} {direction}"
        seconds = turns["medians"].get(side)
        if seconds is None:
            known = facts.get("reasons", {}).get(method) or turns["reasons"].get(side)
            yield row | {"reasons": {"seconds": short(known or gloo.get("reason", "not measured"))}}
            continue
        yield row | {
            "seconds": seconds,
            "gflops": flops / seconds,
            "of_peak": flops / seconds / line["peak_gflops"],
            "efficiency": line["one_rank_seconds"] / line["world"] / seconds,
            "efficiency_busy": line["busy_rank_seconds"] / line["world"] / seconds,
            "max_error": facts["max_error"][method],
        }


COLUMNS = {
    "isa": lambda row: row["isa"],
    "engine": lambda row: row["engine"] if row["ours"] else "gloo",
    "dtype": lambda row: row["dtype"],
    "tokens a rank": lambda row: f"{row['tokens']:,}",
    "pass": lambda row: row["pass"],
    "who": lambda row: row["who"] + (" (ours)" if row["ours"] else ""),
    "ms": number("seconds", "{:.1f}", 1e3),
    "of peak": percent("of_peak"),
    "efficiency": number("efficiency", "{:.2f}"),
    "all cores busy": number("efficiency_busy", "{:.2f}"),
    "over best other": number("over_best_other", "{:.2f}"),
    "error": number("max_error", "{:.1e}"),
    "turns left out": left_out,
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench strategies", description=__doc__))
    parser.add_argument("--tokens", type=at_least_one, nargs="+", help="of a rank [1024 2048 8192]")
    parser.add_argument("--heads", type=at_least_one, default=8)
    parser.add_argument("--head-dim", type=at_least_one, default=128)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--engine", default="threads", choices=ENGINES, help="of our ranks [threads]")
    args = parser.parse_args()
    lengths = args.tokens or ([1024] if args.quick else [1024, 2048, 8192])
    budget = Budget(args.quick)
    table = Table(args.json, COLUMNS)
    for tokens in budget.of(lengths):
        for row in measure(args, tokens, seconds_of(args, 10, 60)):
            table.add(row)


if __name__ == "__main__":
    run(main)
