"""How long planning and proving take, up to 1,024 ranks. Every plan that is timed must verify.

Causal, zigzag, 1,024 tokens a rank, 64 query and 8 KV heads, d = 128, bf16. For 64 ranks also every
strategy with `balanced`, which has the most blocks, and the plan of most ops (allgather:slices=16 of 64 KV
heads). How much verify looks at is asserted in armillary/plan/verify/work_test.cpp."""

import argparse

from bench.contest import ROOT, Table, add_flags, left_out, number, results, run, seconds_of

WORLDS = (8, 64, 1024)
COLUMNS = {
    "strategy": lambda row: row["strategy"],
    "ranks": lambda row: f"{row['world']:,}",
    "layout": lambda row: row["layout"],
    "pass": lambda row: row["pass"],
    "what": lambda row: row["what"],
    "ms": number("ms", "{:,.1f}"),
    "turns": lambda row: row["turns"],
    "turns left out": left_out,
}


def measure(world, least_s):
    """Rows of one world, as the program prints them: medians of three repetitions."""
    command = [
        str(ROOT / "build" / "bin" / "verify_bench"),
        f"--benchmark_filter=/world:{world}/",
        f"--benchmark_min_time={least_s}",
        "--benchmark_repetitions=3",
        "--benchmark_enable_random_interleaving=true",
    ]
    return results(command, 3600)


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench verify", description=__doc__))
    parser.add_argument("--world", type=int, nargs="+", choices=WORLDS, help="ranks [8 64 1024]")
    args = parser.parse_args()
    worlds = args.world or (WORLDS[:2] if args.quick else WORLDS)
    table = Table(args.json, COLUMNS)
    for world in worlds:
        for row in measure(world, max(0.01, seconds_of(args, 0.05, 0.5))):
            table.add(row)


if __name__ == "__main__":
    run(main)
