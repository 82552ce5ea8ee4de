"""The cost of the executor: time beyond the kernel calls of a layer, per op of its plan, and buffers it
allocates. "At best" compares the quickest turns of both: the cost that remains when nobody disturbs.

One layer has tiny tiles, so that its time is nearly all executor; the other has 128 tokens a rank, as it is
used. Threads are ranks, so a core for each is needed: with fewer, waiting for a core is counted too."""

import argparse

from bench.contest import Budget, Table, add_flags, left_out, number, program, results, run, seconds_of

TINY = ["--tokens", 16, "--heads", 2, "--head-dim", 8]
LAYER = ["--tokens", 128, "--heads", 8, "--head-dim", 128]
STRATEGIES = ("ring", "usp:u=2", "grid:u=1,rq=1,rk=2", "tokenring")

COLUMNS = {
    "strategy": lambda row: row["strategy"],
    "ranks": lambda row: row["world"],
    "tokens a rank": lambda row: row["tokens"],
    "heads x d": lambda row: f"{row['heads']} x {row['head_dim']}",
    "pass": lambda row: row["pass"],
    "us a layer": number("seconds", "{:.1f}", 1e6),
    "over kernels, us": number("over_kernels_us", "{:.1f}"),
    "at best": number("least_over_kernels_us", "{:.1f}"),
    "ops": lambda row: row["ops"],
    "us an op": number("us_an_op", "{:.1f}"),
    "buffers allocated": lambda row: row["allocations"],
    "turns left out": left_out,
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench executor", description=__doc__))
    args = parser.parse_args()
    budget = Budget(args.quick)
    table = Table(args.json, COLUMNS)
    for shape, world in budget.of([(shape, world) for shape in (TINY, LAYER) for world in (1, 2)]):
        strategies = STRATEGIES if world > 1 else ("ring",)
        strategy_flags = [part for strategy in strategies for part in ("--strategy", strategy)]
        seconds = ["--seconds", seconds_of(args, 5, 20)]
        for row in results(program("layer", *shape, "--world", world, *strategy_flags, *seconds)):
            table.add(row)


if __name__ == "__main__":
    run(main)
