"""How long started collectives take, and how much of that compute hides, on threads or processes.

Results are checked first: bit for bit, sums in the order of ranks. "hidden" is the time of the collective
and of compute that takes as long, less that of both at once, over that of the collective. "bare" are the
same messages, and the sum, without a collective. Messages and bytes are those that a rank sends in a call;
its labels say which call it is, in place of messages in front."""

import argparse

from bench.contest import (
    ENGINES,
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

SIZES = (1024, 65536, 4194304)
COLUMNS = {
    "engine": lambda row: row["engine"],
    "ranks": lambda row: row["world"],
    "collective": lambda row: row["operation"],
    "bytes of a part": lambda row: f"{row['part_bytes']:,}",
    "alone, us": number("seconds", "{:,.1f}", 1e6),
    "bare, us": number("bare_seconds", "{:,.1f}", 1e6),
    "over bare, us": number("over_bare_us", "{:,.1f}"),
    "compute, us": number("compute_seconds", "{:,.1f}", 1e6),
    "beside, us": number("beside_seconds", "{:,.1f}", 1e6),
    "hidden": percent("hidden"),
    "messages": lambda row: row["messages"],
    "bytes": lambda row: f"{row['bytes']:,}",
    "of labels": lambda row: f"{row['label_bytes']:,}",
    "turns": lambda row: row["turns"],
    "turns left out": left_out,
}


def measure(args, engine):
    """Rows of one engine."""
    sizes = [word for size in args.bytes for word in ("--bytes", size)]
    flags = ["--world", args.world, *sizes, "--seconds", seconds_of(args, 0, 10)]
    return results(on_engine(engine, args.world, program("collectives", *flags)), 600)


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench collectives", description=__doc__))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--world", type=at_least_one, default=2, help="ranks [2]")
    parser.add_argument("--bytes", type=at_least_one, nargs="+", default=list(SIZES), help="of a rank's part")
    args = parser.parse_args()
    table = Table(args.json, COLUMNS)
    for engine in args.engines:
        for row in measure(args, engine):
            table.add(row)


if __name__ == "__main__":
    run(main)
