"""How much faster than the choices of the papers the tuner's are, in simulation.

Each row is a cluster and a model shape on which a paper published measurements. "theirs" is the fastest in
simulation of the strategies that the paper measured there, in the better of the layouts `contiguous` and
`zigzag`; "ours" is what `armillary tune` chooses without knowing them. Times are of attention alone, all
passes together. "compute" and "exposed" say where the gain comes from: milliseconds less on the busiest rank,
and milliseconds less of messages that nothing hides. Nothing is measured: any machine gives these numbers."""

import argparse
import json
import subprocess

from bench.contest import PROGRAM, Table, number

USP = ("ring", "usp:u=2", "usp:u=4", "ulysses")
STARTRAIL = (
    "startrail:c=2",
    "startrail:c=4",
    "startrail:c=2,placement=p2p_intra",
    "startrail:c=4,placement=p2p_intra",
)
GRID = ("attention2d:rows=8", "attention2d:overlap=true,rows=8")
MAGI = ("ring", "allgather", "usp:u=8", "ulysses", "double_ring:window=8")
# Cluster, ranks, query heads, KV heads, head dim, tokens, mask, pass, source, strategies of the source.
CELLS = (
    ("c1", 64, 32, 32, 128, 131072, "causal", "both", "StarTrail, GPT-7B", STARTRAIL),
    ("c2", 32, 16, 16, 256, 131072, "causal", "both", "StarTrail, GPT-3B", STARTRAIL),
    ("c2", 32, 32, 32, 128, 131072, "causal", "both", "StarTrail, GPT-7B", STARTRAIL),
    ("c2", 32, 24, 24, 64, 131072, "full", "both", "StarTrail, DiT-1B", STARTRAIL),
    ("c3", 32, 16, 16, 256, 131072, "causal", "both", "StarTrail, GPT-3B", STARTRAIL),
    ("c3", 32, 32, 32, 128, 131072, "causal", "both", "StarTrail, GPT-7B", STARTRAIL),
    ("c3", 32, 24, 24, 64, 131072, "full", "both", "StarTrail, DiT-1B", STARTRAIL),
    ("c4", 32, 16, 16, 256, 131072, "causal", "both", "StarTrail, GPT-3B", STARTRAIL),
    ("c4", 32, 32, 32, 128, 131072, "causal", "both", "StarTrail, GPT-7B", STARTRAIL),
    ("c4", 32, 24, 24, 64, 131072, "full", "both", "StarTrail, DiT-1B", STARTRAIL),
    ("c5", 16, 32, 8, 128, 65536, "causal", "both", "USP table 6", (*USP[:3], "usp:u=8", "ulysses")),
    ("c5", 16, 32, 8, 128, 212992, "causal", "both", "USP table 7", (*USP[:3], "usp:u=8", "ulysses")),
    ("c5a", 8, 32, 32, 128, 30720, "causal", "both", "USP table 5", USP),
    ("c6", 8, 32, 8, 128, 32768, "causal", "forward", "USP table 3", USP),
    ("c6", 8, 32, 8, 128, 131072, "causal", "both", "USP table 3", USP),
    ("c6", 8, 32, 32, 32, 32768, "causal", "forward", "README of USP", USP),
    ("c6", 8, 8, 8, 32, 131072, "causal", "forward", "README of USP", USP),
    ("c6", 8, 64, 8, 32, 131072, "causal", "forward", "README of USP", USP),
    ("c6", 8, 8, 8, 128, 131072, "causal", "forward", "README of USP", USP),
    ("c7", 8, 32, 8, 128, 8192, "causal", "forward", "USP table 4", USP),
    ("c7", 8, 32, 8, 128, 131072, "causal", "forward", "USP table 4", USP),
    ("c8", 4, 32, 32, 128, 24000, "causal", "forward", "TokenRing", ("ring", "tokenring")),
    ("c9", 64, 32, 32, 80, 131072, "causal", "both", "Attention2D, GPT-3 2.7B", GRID),
    ("c9", 64, 40, 40, 128, 131072, "causal", "both", "Attention2D, GPT-3 13B", GRID),
    ("c10", 64, 40, 40, 128, 131072, "causal", "both", "Attention2D, GPT-3 13B", GRID),
    ("c10", 64, 72, 72, 128, 131072, "causal", "both", "Attention2D, GPT-3 66B", GRID),
    ("c11", 8, 32, 8, 128, 65536, "causal", "both", "ring-flash-attention", ("ring",)),
    ("c12", 8, 32, 32, 128, 131072, "full", "both", "BurstAttention", ("ring", "double_ring:window=4")),
    ("c13", 8, 64, 8, 128, 65536, "causal", "both", "Magi", ("ring", "allgather", "usp:u=4", "ulysses")),
    ("c13", 16, 64, 8, 128, 131072, "causal", "both", "Magi", MAGI),
    ("c13", 64, 64, 8, 128, 524288, "causal", "both", "Magi", MAGI),
    ("c13", 64, 64, 8, 128, 524288, "full", "both", "Magi", MAGI),
)
THEIR_LAYOUTS = ("contiguous", "zigzag")


def tune(program, cell, against=()):
    """The evaluations of a tuning, the chosen one first."""
    cluster, world, heads, kv_heads, dim, tokens, mask, passes, _, _ = cell
    command = [program, "tune", "--json", "--no-cache", "--cluster", cluster]
    flags = {"world": world, "heads": heads, "kv-heads": kv_heads, "head-dim": dim, "seq": tokens}
    for name, value in {**flags, "mask": mask, "pass": passes}.items():
        command += [f"--{name}", str(value)]
    for strategy in against:
        command += ["--against", strategy]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)["evaluations"]


def row(program, cell):
    ours = tune(program, cell)[0]
    known = [
        evaluation
        for evaluation in tune(program, cell, cell[-1])
        if evaluation["strategy"] in cell[-1]
        and evaluation["layout"] in THEIR_LAYOUTS
        and evaluation["placement_stride"] == 1
        and "time_s" in evaluation
    ]
    theirs = min(known, key=lambda evaluation: evaluation["time_s"])
    return {
        "cluster": f"{cell[0]}, {cell[1]}",
        "source": cell[8],
        "shape": f"{cell[2]}/{cell[3]} x {cell[4]}, {cell[5]}, {cell[6]}, {cell[7]}",
        "theirs": f"{theirs['strategy']}, {theirs['layout']}",
        "theirs_s": theirs["time_s"],
        "ours": f"{ours['strategy']}, {ours['layout']}"
        + (f", stride:{ours['placement_stride']}" if ours["placement_stride"] != 1 else ""),
        "ours_s": ours["time_s"],
        "gain": theirs["time_s"] / ours["time_s"],
        "compute_s": theirs["compute_s"] - ours["compute_s"],
        "exposed_s": theirs["exposed_s"] - ours["exposed_s"],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one object a row")
    parser.add_argument("--program", default=str(PROGRAM), help="another armillary than build/bin/armillary")
    args = parser.parse_args()
    table = Table(
        args.json,
        {
            "cluster, ranks": lambda row: row["cluster"],
            "source": lambda row: row["source"],
            "heads x dim, tokens, mask, pass": lambda row: row["shape"],
            "theirs": lambda row: row["theirs"],
            "ms": number("theirs_s", "{:.2f}", 1e3),
            "ours": lambda row: row["ours"],
            "ms ": number("ours_s", "{:.2f}", 1e3),
            "gain": number("gain", "{:.3f}"),
            "less compute ms": number("compute_s", "{:.2f}", 1e3),
            "less exposed ms": number("exposed_s", "{:.2f}", 1e3),
        },
    )
    for cell in CELLS:
        table.add(row(args.program, cell))


if __name__ == "__main__":
    main()
