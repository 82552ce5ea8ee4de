"""Causal attention over two ranks: our strategies on threads, and what a user could pick instead on
processes.

The others run on Gloo over loopback, one thread each: a zigzag ring and Ulysses written plainly, PyTorch's
context parallel with the CPU kernel handed in, yunchang with the CPU kernel patched in (forward only). All
results are checked first; then all take turns. Efficiency is our one rank's time for the whole sequence,
halved, over theirs. "over best other" is the time of the fastest of the others over ours."""

import argparse

from bench.contest import (
    Budget,
    Contender,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    left_out,
    number,
    peer,
    percent,
    program,
    run,
    seconds_of,
    take_turns,
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


def shape_of(args, tokens):
    return ["--tokens", tokens, "--heads", args.heads, "--head-dim", args.head_dim, "--dtype", args.dtype]


def measure(args, tokens, seconds):
    """The rows of one length: one for every strategy, peer and pass."""
    shape = shape_of(args, tokens)
    chosen = [part for strategy in STRATEGIES for part in ("--strategy", strategy)]
    with Contender(program("layer", "--no-kernels", *shape, *chosen), timeout_s=3600) as ours:
        facts, others = ours.facts, peer("gloo_attention", "--timeout", 3600, *shape)
        errors, reasons = dict(facts["max_error"]), {}
        runs = {side: (lambda side=side: ours.run(side)) for side in facts["sides"]}
        peers = []
        try:
            with Contender(others, timeout_s=3600) as gloo:
                for side in gloo.facts["sides"]:
                    method = side.rpartition(" ")[0]
                    peers += [method] if method not in peers else []
                for method in peers:
                    try:
                        errors[method] = gloo.run(f"{method} error")
                    except RefusedError as refused:
                        reasons[method] = str(refused)
                        continue
                    for direction in PASSES:
                        side = f"{method} {direction}"
                        runs[side] = lambda side=side: gloo.run(side)
                medians, refusals, counts = take_turns(runs, seconds)
        except RefusedError as refused:  # no peer at all: ours are measured without
            reasons["processes on Gloo"] = str(refused)
            peers = ["processes on Gloo"]
            medians, refusals, counts = take_turns(runs, seconds)
    common = {
        "bench": "strategies",
        **{key: facts[key] for key in ("isa", "dtype", "head_dim", "tokens", "heads", "mask", "world")},
        **counts,
        "peak_gflops": medians["peak"],
    }
    return rows(common, facts["flops"], [*STRATEGIES, *peers], medians, errors, reasons | refusals)


def rows(common, flops, names, medians, errors, reasons):
    """What is printed of one length. The fastest of the others is sought for each pass."""
    for direction in PASSES:
        others = {
            name: medians[f"{name} {direction}"]
            for name in names
            if name not in STRATEGIES and f"{name} {direction}" in medians
        }
        for name in names:
            row = common | {"pass": direction, "who": name, "ours": name in STRATEGIES}
            seconds = medians.get(f"{name} {direction}")
            if seconds is None:
                reason = reasons.get(f"{name} {direction}") or reasons.get(name, "not measured")
                yield row | {"reasons": {"seconds": reason}}
                continue
            row |= {
                "seconds": seconds,
                "gflops": flops[direction] / seconds / 1e9,
                "of_peak": flops[direction] / seconds / 1e9 / common["peak_gflops"],
                "efficiency": medians[f"one_rank {direction}"] / common["world"] / seconds,
                "efficiency_busy": medians[f"busy_rank {direction}"] / common["world"] / seconds,
                "max_error": errors[name],
            }
            if others and row["ours"]:
                row["best_other"] = min(others, key=others.get)
                row["over_best_other"] = min(others.values()) / seconds
            yield row


COLUMNS = {
    "isa": lambda row: row["isa"],
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
    "rounds left out": left_out,
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench strategies", description=__doc__))
    parser.add_argument("--tokens", type=at_least_one, nargs="+", help="of a rank [1024 2048 8192]")
    parser.add_argument("--heads", type=at_least_one, default=8)
    parser.add_argument("--head-dim", type=at_least_one, default=128)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    args = parser.parse_args()
    lengths = args.tokens or ([1024] if args.quick else [1024, 2048, 8192])
    budget = Budget(args.quick)
    table = Table(args.json, COLUMNS)
    for tokens in budget.of(lengths):
        for row in measure(args, tokens, seconds_of(args, 10, 60)):
            table.add(row)


if __name__ == "__main__":
    run(main)
