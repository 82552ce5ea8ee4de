"""One attention layer, forward and backward, on one rank and on two: the cost of spreading it.

Efficiency is one rank's time for the whole sequence, halved, over the time of two ranks; "all cores busy"
is the same against one rank while the other core runs it too, which is what two ranks share. "over
kernels" is the time of a layer beyond its kernel calls alone. Turns in which the second core was not there
are left out of all medians."""

import argparse

from bench.contest import (
    ENGINES,
    Budget,
    Table,
    add_flags,
    at_least_one,
    left_out,
    number,
    on_engine,
    percent,
    program,
    results,
    run,
    seconds_of,
)

COLUMNS = {
    "isa": lambda row: row["isa"],
    "engine": lambda row: row["engine"],
    "dtype": lambda row: row["dtype"],
    "strategy": lambda row: row["strategy"],
    "ranks": lambda row: row["world"],
    "tokens a rank": lambda row: f"{row['tokens']:,}",
    "pass": lambda row: row["pass"],
    "ms": number("seconds", "{:.2f}", 1e3),
    "of peak": percent("of_peak"),
    "efficiency": number("efficiency", "{:.2f}"),
    "all cores busy": number("efficiency_busy", "{:.2f}"),
    "over kernels, us": number("over_kernels_us", "{:.0f}"),
    "error": number("max_error", "{:.1e}"),
    "turns left out": left_out,
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench layer", description=__doc__))
    parser.add_argument("--tokens", type=at_least_one, nargs="+", help="of a rank [128 1024 2048 8192]")
    parser.add_argument("--heads", type=at_least_one, default=8)
    parser.add_argument("--dtype", nargs="+", default=["fp32"], choices=("fp32", "bf16"))
    parser.add_argument("--engine", default="threads", choices=ENGINES, help="of the ranks [threads]")
    args = parser.parse_args()
    lengths = args.tokens or ([128, 1024, 2048] if args.quick else [128, 1024, 2048, 8192])
    strategies = ("ring",) if args.quick else ("ring", "usp:u=2", "grid:u=1,rq=1,rk=2")
    strategy_flags = [part for strategy in strategies for part in ("--strategy", strategy)]
    cells = [(tokens, dtype, world) for dtype in args.dtype for tokens in lengths for world in (1, 2)]
    budget = Budget(args.quick)
    table = Table(args.json, COLUMNS)
    for tokens, dtype, world in budget.of(cells):
        shape = ["--tokens", tokens, "--heads", args.heads, "--dtype", dtype, "--world", world]
        of_world = strategy_flags if world > 1 else []
        seconds = ["--seconds", seconds_of(args, 4, 20)]
        command = program("layer", *shape, *of_world, *seconds)
        for row in results(on_engine(args.engine, world, command), 3600):
            table.add(row)


if __name__ == "__main__":
    run(main)
