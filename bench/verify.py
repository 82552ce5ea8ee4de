"""How long planning and proving take, up to 1,024 ranks. Every plan that is timed must verify.

Causal, zigzag, 1,024 tokens a rank, 64 query and 8 KV heads, d = 128, bf16."""

import argparse
import json
import subprocess

from bench.contest import ROOT, RefusedError, Table, add_flags, last_line, number, seconds_of

WORLDS = (8, 64, 1024)
COLUMNS = {
    "strategy": lambda row: row["strategy"],
    "ranks": lambda row: f"{row['world']:,}",
    "pass": lambda row: row["pass"],
    "what": lambda row: row["what"],
    "ms": number("ms", "{:,.1f}"),
    "rounds": lambda row: row["rounds"],
}


def timing(run):
    if run.get("error_occurred"):
        return {"reasons": {"ms": run["error_message"]}, "rounds": 0}
    return {"ms": run["real_time"], "rounds": run["iterations"]}


def measure(world, least_s):
    """Rows of one world, as Google Benchmark reports them."""
    command = [
        str(ROOT / "build" / "bin" / "verify_bench"),
        f"--benchmark_filter=/world:{world}/",
        f"--benchmark_min_time={least_s}",
        "--benchmark_format=json",
    ]
    done = subprocess.run(command, capture_output=True, timeout=1800)
    if done.returncode != 0:
        raise RefusedError(last_line(done.stderr) or f"exit code {done.returncode}")
    for run in json.loads(done.stdout)["benchmarks"]:
        strategy, direction = run["label"].split()
        yield {
            "bench": "verify",
            "strategy": strategy,
            "world": world,
            "pass": direction,
            "what": run["name"].split("/")[0],
            **timing(run),
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
    main()
