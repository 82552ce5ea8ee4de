"""The Python package on two processes against what a user could pick instead, and what a call of it costs.

All methods run in the same two processes on Gloo over loopback, one thread each, and take turns: ours, a
zigzag ring and Ulysses written plainly, PyTorch's context parallel with the CPU kernel handed in, yunchang
with the CPU kernel patched in (forward only). "over ours" is a method's time over that of ours. After the
table: what a call over 16 tokens on one rank takes, nearly all of it Python, dispatch and autograd."""

import argparse
import os

from bench.contest import (
    ROOT,
    Budget,
    Table,
    add_flags,
    at_least_one,
    left_out,
    number,
    output,
    peer,
    program,
    results,
    run,
    seconds_of,
    short,
)

PASSES = ("forward", "forward+backward")
OURS = "armillary package"
DEADLINE_S = 3600
OVERHEAD = """
import time, statistics, torch, armillary
torch.set_num_threads(1)
sp = armillary.SequenceParallel()
inputs = [torch.randn(1, 16, 2, 16) for _ in range(3)]
leaves = [x.clone().requires_grad_() for x in inputs]
forward = torch.ops.armillary.attention_forward
settings = sp._call(armillary._options.Options(), sp.mask.text_at(16), (16, 16), 16)
calls = {
    "forward": lambda: sp.attention(*inputs),
    "op of forward": lambda: forward(*inputs, None, None, None, False, *settings),
    "forward+backward": lambda: sp.attention(*leaves).sum().backward(),
}
for name, call in calls.items():
    times = []
    for _ in range(2000):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    print(name, statistics.median(times[200:]), sep=":")
"""


def measure(args, tokens, seconds):
    """The rows of one length."""
    shape = ["--tokens", tokens, "--heads", args.heads, "--head-dim", args.head_dim, "--dtype", args.dtype]
    others = peer("gloo_attention", "--ours", "--timeout", DEADLINE_S, *shape)
    limits = ["--seconds", seconds, "--least", 3, "--deadline", DEADLINE_S]
    (turns,) = results(program("turns", "--cores", *others, *limits))
    (gloo,) = turns["contenders"]
    facts = gloo["facts"]
    for direction in PASSES:
        ours = turns["medians"].get(f"{OURS} {direction}")
        for method in facts.get("methods", [OURS]):
            row = {
                "bench": "package",
                "dtype": args.dtype,
                "tokens": tokens,
                "pass": direction,
                "who": method,
            }
            row |= {key: turns[key] for key in ("turns", "left_out_turns", "left_out_cores", "all_left_out")}
            seconds = turns["medians"].get(f"{method} {direction}")
            if seconds is None or ours is None:
                reason = facts.get("reasons", {}).get(method) or turns["reasons"].get(f"{method} {direction}")
                yield row | {"reasons": {"seconds": short(reason or gloo.get("reason", "not measured"))}}
                continue
            error = facts["max_error"][method]
            yield row | {"seconds": seconds, "over_ours": seconds / ours, "max_error": error}


COLUMNS = {
    "dtype": lambda row: row["dtype"],
    "tokens a rank": lambda row: f"{row['tokens']:,}",
    "pass": lambda row: row["pass"],
    "who": lambda row: row["who"],
    "ms": number("seconds", "{:.2f}", 1e3),
    "over ours": number("over_ours", "{:.2f}"),
    "error": number("max_error", "{:.1e}"),
    "turns left out": left_out,
}


def print_overhead(as_json):
    import sys

    for line in output([sys.executable, "-c", OVERHEAD]).decode().splitlines():
        name, _, seconds = line.rpartition(":")
        if as_json:
            print(f'{{"bench": "package", "call": "{name}", "seconds": {seconds}}}')
        else:
            print(f"a call over 16 tokens on one rank, {name}: {1e6 * float(seconds):.0f} us")


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench package", description=__doc__))
    parser.add_argument("--tokens", type=at_least_one, nargs="+", help="of a rank [1024 4096 8192]")
    parser.add_argument("--heads", type=at_least_one, default=8)
    parser.add_argument("--head-dim", type=at_least_one, default=128)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT / "build" / "python")
    lengths = args.tokens or ([1024] if args.quick else [1024, 4096, 8192])
    budget = Budget(args.quick)
    table = Table(args.json, COLUMNS)
    for tokens in budget.of(lengths):
        for row in measure(args, tokens, seconds_of(args, 10, 60)):
            table.add(row)
    print_overhead(args.json)


if __name__ == "__main__":
    run(main)
