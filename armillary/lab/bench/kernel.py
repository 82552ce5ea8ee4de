"""The attention kernel of one rank: ours, PyTorch's flash kernel, compiled flex_attention and the peak of
the cores.

Every cell is checked against fp64 before it is timed; then all take turns. Rates are GFLOP/s of visible
pairs. PyTorch's flash kernel knows full and causal masks only, flex_attention has no backward on CPUs."""

import argparse
import itertools

from bench.contest import (
    Budget,
    Table,
    add_flags,
    at_least_one,
    cpu_multiplies_bf16,
    left_out,
    number,
    peer,
    percent,
    program,
    results,
    run,
    seconds_of,
    short,
)

DOCUMENTS = (512, 1536, 700, 1348)  # 4,096 tokens, one after the other
PASSES = ("forward", "backward")


def documents(tokens):
    return "documents:" + ",".join(map(str, DOCUMENTS * (tokens // sum(DOCUMENTS))))


def cell(args, **changes):
    """A cell: `given`, and defaults for all else."""
    defaults = {
        "dtype": "fp32",
        "head_dim": 128,
        "tokens": 4096,
        "heads": args.heads,
        "mask": "causal",
        "layout": "contiguous",
        "world": 1,
        "pass": "forward",
        "threads": 1,
    }
    return defaults | changes


def dense_cells(args):
    """Full and causal masks, which all sides know."""
    for tokens, dim, dtype, threads, direction, mask in itertools.product(
        args.tokens or ([4096] if args.quick else [1024, 4096, 16384]),
        args.head_dim or ([128] if args.quick else [128, 64]),
        args.dtype,
        args.threads,
        args.direction,
        ("causal",) if args.quick else ("full", "causal"),
    ):
        if args.quick and slow(dtype, direction):
            tokens = min(tokens, 1024)
        common = {"tokens": tokens, "head_dim": dim, "dtype": dtype, "threads": threads, "mask": mask}
        yield cell(args, **common, **{"pass": direction})


def slow(dtype, direction):
    """Whether PyTorch's flash kernel is many times slower than in other cells."""
    return dtype == "bf16" and direction == "backward" and not cpu_multiplies_bf16()


def sparse_cells(args):
    """Masks that hide most of the square; rates are of the visible pairs."""
    tokens = 4096 if args.quick else 16384
    for mask, dtype, threads, direction in itertools.product(
        ("window:left=1023,right=0", documents(tokens)),
        ("fp32",) if args.quick else args.dtype,
        (1,) if args.quick else args.threads,
        ("forward",) if args.quick else args.direction,
    ):
        yield cell(args, tokens=tokens, mask=mask, dtype=dtype, threads=threads, **{"pass": direction})


def strided_cells(args):
    """Blocks as layouts cut them, against a contiguous one of the same size."""
    for layout, direction in itertools.product(
        ("contiguous", "zigzag", "striped"), ("forward",) if args.quick else args.direction
    ):
        yield cell(args, mask="full", layout=layout, world=4, **{"pass": direction})


CELLS = {"dense": dense_cells, "sparse": sparse_cells, "strided": strided_cells}


def flags_of(spec, without=()):
    """A cell as flags, which our program and the peer spell alike."""
    flags = {"--" + key.replace("_", "-"): value for key, value in spec.items() if key not in without}
    return [part for pair in flags.items() for part in pair]


def why_no_sdpa(spec):
    """The reason why PyTorch's flash kernel is not asked, or None."""
    if spec["world"] > 1:
        return "not asked"
    if spec["mask"] not in ("full", "causal"):
        return "no such mask"
    if slow(spec["dtype"], spec["pass"]) and spec["tokens"] > 4096:
        return "too slow"
    return None


def why_no_flex(spec, no_time):
    """The reason why flex_attention is not asked, or None. Compiling a cell takes it up to a minute."""
    if spec["pass"] == "backward":
        return "no backward"
    if spec["world"] > 1:
        return "not asked"
    return "not with --quick" if no_time else None


def measure(spec, no_time, seconds):
    """One row: the facts of the cell, medians, and reasons for the sides that are missing."""
    no_sdpa, no_flex = why_no_sdpa(spec), why_no_flex(spec, no_time)
    extra = [] if no_sdpa else ["--sdpa"]
    if not no_flex:
        extra += peer("flex", *flags_of(spec, without=("layout", "world", "pass")))
    row, *turns = results(program("kernel", *flags_of(spec), *extra, "--seconds", seconds))
    row["reasons"] = {}
    if no_sdpa:
        row["reasons"]["over_sdpa"] = no_sdpa
    if turns:
        no_flex = add_flex(row, turns[0])
    if no_flex:
        row["reasons"]["over_flex"] = no_flex
    return row


def add_flex(row, turns):
    """Adds the rate of flex_attention, or returns the reason why there is none."""
    (contender,) = turns["contenders"]
    row |= {"flex_" + key: value for key, value in contender["facts"].items() if key == "max_error"}
    if "flex" not in turns["medians"]:
        return short(turns["reasons"].get("flex") or contender["reason"])
    row["flex_gflops"] = row["flops"] / turns["medians"]["flex"] / 1e9
    row["over_flex"] = row["gflops"] / row["flex_gflops"]
    return None


def name(row):
    text = "documents of 512 to 1,536" if row["mask"].startswith("documents") else row["mask"]
    return text + (f", {row['layout']} of {row['world']}" if row["world"] > 1 else "")


COLUMNS = {
    "isa": lambda row: row["isa"],
    "dtype": lambda row: row["dtype"],
    "d": lambda row: row["head_dim"],
    "tokens": lambda row: f"{row['tokens']:,}",
    "mask": name,
    "pass": lambda row: row["pass"],
    "threads": lambda row: row["threads"],
    "GFLOP/s": number("gflops", "{:.1f}"),
    "peak": number("peak_gflops", "{:.1f}"),
    "of peak": percent("of_peak"),
    "over PyTorch": number("over_sdpa", "{:.2f}"),
    "over flex": number("over_flex", "{:.2f}"),
    "error": number("max_error", "{:.1e}"),
    "PyTorch's": number("sdpa_max_error", "{:.1e}"),
    "turns left out": left_out,
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench kernel", description=__doc__))
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS, help="which [all]")
    parser.add_argument("--tokens", type=at_least_one, nargs="+", help="of dense cells [1024 4096 16384]")
    parser.add_argument("--head-dim", type=at_least_one, nargs="+", help="of dense cells [128 64]")
    parser.add_argument("--heads", type=at_least_one, default=8)
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"], choices=("fp32", "bf16"))
    parser.add_argument("--threads", type=at_least_one, nargs="+", default=[1, 2])
    parser.add_argument("--pass", dest="direction", nargs="+", default=list(PASSES), choices=PASSES)
    args = parser.parse_args()
    cells = [spec for kind in args.cells for spec in CELLS[kind](args)]
    cells.sort(key=lambda spec: spec["threads"])  # where time is short, one thread is what remains
    table = Table(args.json, COLUMNS)
    budget = Budget(args.quick)
    for spec in budget.of(cells):
        no_time = args.quick and (spec["threads"] > 1 or budget.left_s() < 20)
        table.add(measure(spec, no_time, seconds_of(args, 0, 3)))


if __name__ == "__main__":
    run(main)
