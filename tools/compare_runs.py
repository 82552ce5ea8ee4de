"""Prints the first steps of two training runs side by side, and how far apart they are.

    python3 tools/compare_runs.py runs/a runs/b [--within 1e-4]

Reads metrics.jsonl of both run folders. Exit code: 0, or 1 if loss or gradient norm of a step that both have
differ by more than --within, relative.
"""

import argparse
import json
import pathlib
import sys


def read_steps(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {step["step"]: step for step in map(json.loads, lines)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=pathlib.Path, nargs=2)
    parser.add_argument("--within", type=float, default=1e-4)
    args = parser.parse_args()
    one, other = map(read_steps, args.runs)
    both = sorted(one.keys() & other.keys())
    if not both:
        sys.exit(f"compare_runs: {args.runs[0]} and {args.runs[1]} have no step in common")
    names = [folder.name for folder in args.runs]
    print(f"{'':4} {'loss':^27} {'gradient norm':^27}   largest relative")
    print(f"step {names[0]:>13} {names[1]:>13} {names[0]:>13} {names[1]:>13}   difference")
    worst = 0.0
    for step in both:
        pairs = [(one[step][key], other[step][key]) for key in ("loss", "grad_norm")]
        apart = max(abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs)
        worst = max(worst, apart)
        print(f"{step:4} " + " ".join(f"{a:13.7f} {b:13.7f}" for a, b in pairs) + f"   {apart:.1e}")
    if worst > args.within:
        sys.exit(f"compare_runs: they differ by {worst:.1e}; at most {args.within:.1e} is allowed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
