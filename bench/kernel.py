"""The attention kernel of one rank: ours, PyTorch's flash kernel, compiled flex_attention and the peak of
the cores.

Every cell is checked against fp64 before it is timed; then all take turns. Rates are GFLOP/s of visible
pairs. PyTorch's flash kernel knows full and causal masks only, flex_attention has no backward on CPUs."""

import argparse
import itertools
import json

from bench.contest import (
    Budget,
    Contender,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    cpu_multiplies_bf16,
    left_out,
    number,
    peer,
    percent,
    program,
    run,
    seconds_of,
    take_turns,
)

DOCUMENTS = (512, 1536, 700, 1348)  # 4,096 tokens, one after the other
PASSES = ("forward", "backward")


def documents(tokens):
    return "documents:" + ",".join(map(str, DOCUMENTS * (tokens // sum(DOCUMENTS))))


def cell(args, **given):
    """A cell with what it does not say itself."""
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
    return defaults | given


def dense_cells(args):
    """Full and causal masks, which all of them know."""
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
        found = {"tokens": tokens, "head_dim": dim, "dtype": dtype, "threads": threads, "mask": mask}
        yield cell(args, **found, **{"pass": direction})


def slow(dtype, direction):
    """What PyTorch does at 8 GFLOP/s."""
    return dtype == "bf16" and direction == "backward" and not cpu_multiplies_bf16()


def sparse_cells(args):
    """Masks that leave most of the square out: by visible pairs."""
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


def flags_of(wanted):
    return [part for key, value in wanted.items() for part in ("--" + key.replace("_", "-"), value)]


def why_no_sdpa(wanted):
    if wanted["world"] > 1:
        return "not asked"
    if wanted["mask"] not in ("full", "causal"):
        return "no such mask"
    if slow(wanted["dtype"], wanted["pass"]) and wanted["tokens"] > 4096:
        return "too slow"
    return None


def flex_side(wanted, flex):
    """What flex_attention is asked to run. @raises RefusedError if there is nothing to ask."""
    if wanted["pass"] == "backward":
        raise RefusedError("no backward")
    if wanted["world"] > 1:
        raise RefusedError("not asked")
    if isinstance(flex, RefusedError):
        raise flex
    return json.dumps({key: wanted[key] for key in wanted if key not in ("layout", "world", "pass")})


def measure(wanted, flex, seconds):
    """One row: the facts of the cell, medians, and reasons for what is missing."""
    no_sdpa = why_no_sdpa(wanted)
    asked = [] if no_sdpa else ["--sdpa"]
    with Contender(program("kernel", *asked, *flags_of(wanted)), timeout_s=1800) as ours:
        row = dict(ours.facts)
        runs = {side: (lambda side=side: ours.run(side)) for side in row.pop("sides")}
        row["reasons"] = {"sdpa": no_sdpa} if no_sdpa else {}
        try:
            side = flex_side(wanted, flex)
            row["flex_max_error"] = flex.run("error " + side)
            runs["flex"] = lambda: row["flops"] / flex.run(side) / 1e9
        except RefusedError as refused:
            row["reasons"]["flex"] = str(refused)
        medians, reasons, counts = take_turns(runs, seconds)
    row |= counts
    row["reasons"] |= reasons
    if "kernel" in reasons:
        raise RefusedError(reasons["kernel"])
    row["gflops"], row["peak_gflops"] = medians["kernel"], medians["peak"]
    row["of_peak"] = row["gflops"] / row["peak_gflops"]
    for other in ("sdpa", "flex"):
        if other in medians:
            row[other + "_gflops"] = medians[other]
            row["over_" + other] = row["gflops"] / medians[other]
        else:
            row["reasons"]["over_" + other] = row["reasons"].pop(other)
    return row


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
    "rounds left out": left_out,
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
    cells = [wanted for kind in args.cells for wanted in CELLS[kind](args)]
    cells.sort(key=lambda wanted: wanted["threads"])  # where time is short, one thread is what remains
    table = Table(args.json, COLUMNS)
    budget = Budget(args.quick)
    try:
        flex = Contender(peer("flex"))
    except RefusedError as refused:
        flex = refused
    try:
        for wanted in budget.of(cells):
            no_time = args.quick and (wanted["threads"] > 1 or budget.left_s() < 20)
            compiled = RefusedError("not with --quick") if no_time else flex
            table.add(measure(wanted, compiled, seconds_of(args, 0, 3)))
    finally:
        if isinstance(flex, Contender):
            flex.close()


if __name__ == "__main__":
    run(main)
