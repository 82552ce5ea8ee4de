"""The table of attention kernels: ours, PyTorch's flash kernel and the peak of the cores, in one run.

python3 tools/bench_kernel.py PROGRAM [--quick] [--json] [--threads 1 2]

Every cell is one `armillary bench kernel`, which checks its result against fp64 before it times. Cells
without a rate of PyTorch's are those that its kernel cannot do.
"""

import argparse
import itertools
import json
import subprocess
import sys

DOCUMENTS = (512, 1536, 700, 1348)  # 4,096 tokens, one after the other


def documents(tokens):
    lengths = (DOCUMENTS * (tokens // sum(DOCUMENTS) + 1))[: len(DOCUMENTS) * (tokens // 4096)]
    return "documents:" + ",".join(map(str, lengths))


def dense_cells(args):
    """Full and causal: what everybody has."""
    lengths = (4096,) if args.quick else (1024, 4096, 16384)
    for threads, dtype, dim, tokens, direction, mask in itertools.product(
        args.threads,
        ("fp32", "bf16"),
        (128,) if args.quick else (128, 64),
        lengths,
        ("forward", "backward"),
        ("full", "causal"),
    ):
        if tokens == 16384 and mask == "full":
            continue
        yield {
            "--threads": threads,
            "--dtype": dtype,
            "--head-dim": dim,
            "--tokens": tokens,
            "--pass": direction,
            "--mask": mask,
        }


def sparse_cells(args):
    """Masks and blocks that PyTorch's kernel has not; by visible pairs."""
    tokens = 4096 if args.quick else 16384
    for mask in ("causal", "window:left=1023,right=0", documents(tokens)):
        for direction in ("forward", "backward"):
            yield {"--tokens": tokens, "--mask": mask, "--pass": direction}
    for layout in ("contiguous", "zigzag", "striped"):
        for direction in ("forward", "backward"):
            yield {"--tokens": 4096, "--world": 4, "--layout": layout, "--mask": "full", "--pass": direction}


def measure(program, cell, seconds):
    """One line of the program; what it refuses or gets wrong ends the run."""
    flags = [str(part) for pair in cell.items() for part in pair]
    command = [program, "bench", "kernel", "--json", "--sdpa", "--seconds", str(seconds), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def name(line):
    mask = line["mask"] if len(line["mask"]) < 30 else "documents of 512 to 1,536"
    if line["world"] > 1:
        mask += f", {line['layout']} of {line['world']}"
    return mask


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--quick", action="store_true", help="fewer cells")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    args = parser.parse_args()
    if not args.json:
        print(
            "| isa | dtype | d | tokens | mask | pass | threads | GFLOP/s | of peak | over PyTorch | error |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|")
    for cell in itertools.chain(dense_cells(args), sparse_cells(args)):
        line = measure(args.program, cell, 1 if args.quick else 3)
        if args.json:
            print(json.dumps(line), flush=True)
            continue
        over = f"{line['over_sdpa']:.2f}" if "over_sdpa" in line else "-"
        print(
            f"| {line['isa']} | {line['dtype']} | {line['head_dim']} | {line['tokens']:,} | {name(line)} "
            f"| {line['pass']} | {line['threads']} | {line['gflops']:.1f} | {100 * line['of_peak']:.0f} % "
            f"| {over} | {line['max_error']:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
