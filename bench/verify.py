"""How long planning and proving take, up to 1,024 ranks. Every plan that is timed must verify.

Causal, zigzag, 1,024 tokens a rank, 64 query and 8 KV heads, d = 128, bf16."""

import argparse
import json

from bench.contest import ROOT, Table, add_flags, number, output, run, seconds_of

WORLDS = (8, 64, 1024)
COLUMNS = {
    "strategy": lambda row: row["strategy"],
    "ranks": lambda row: f"{row['world']:,}",
    "pass": lambda row: row["pass"],
    "what": lambda row: row["what"],
    "ms": number("ms", "{:,.1f}"),
    "rounds": lambda row: row["rounds"],
}


def timing(timed):
    if timed.get("error_occurred"):
        return {"reasons": {"ms": timed["error_message"]}, "rounds": 0}
    return {"ms": timed["real_time"], "rounds": timed["iterations"]}


def measure(world, least_s):
    """Rows of one world, as Google Benchmark reports them."""
    command = [
        str(ROOT / "build" / "bin" / "verify_bench"),
        f"--benchmark_filter=/world:{world}/",
        f"--benchmark_min_time={least_s}",
        "--benchmark_format=json",
    ]
    for timed in json.loads(output(command, 1800))["benchmarks"]:
        strategy, direction = timed["label"].split()
        yield {
            "bench": "verify",
            "strategy": strategy,
            "world": world,
            "pass": direction,
            "what": timed["name"].split("/")[0],
            **timing(timed),
        }


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
