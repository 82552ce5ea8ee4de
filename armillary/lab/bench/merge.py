"""Merging partial results and adding gradients, against the speed of memory measured beside them."""

import argparse

from bench.contest import (
    Table,
    add_flags,
    at_least_one,
    left_out,
    number,
    percent,
    program,
    results,
    run,
    seconds_of,
)

COLUMNS = {
    "isa": lambda row: row["isa"],
    "what": lambda row: row["what"],
    "MiB": number("tensor_bytes", "{:.0f}", 2**-20),
    "threads": lambda row: row["threads"],
    "GB/s": number("gbytes_per_s", "{:.1f}"),
    "plain loop": number("loop_gbytes_per_s", "{:.1f}"),
    "memcpy": number("memcpy_gbytes_per_s", "{:.1f}"),
    "of memory": percent("of_memory"),
    "error": number("max_error", "{:.1e}"),
    "turns left out": left_out,
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench merge", description=__doc__))
    parser.add_argument(
        "--tokens", type=at_least_one, nargs="+", default=[16384], help="rows of 8 heads of 128"
    )
    parser.add_argument("--threads", type=at_least_one, nargs="+", default=[1, 2])
    args = parser.parse_args()
    table = Table(args.json, COLUMNS)
    for tokens in args.tokens:
        for threads in args.threads:
            flags = ["--tokens", tokens, "--threads", threads, "--seconds", seconds_of(args, 5, 20)]
            for row in results(program("merge", *flags)):
                table.add(row)


if __name__ == "__main__":
    run(main)
