"""Training a GPT and a Llama (6 layers, width 512, 8 heads, bytes) by `armillary train` and by plain PyTorch
on one process.

Both start from the same parameters on the same text; loss and gradient norm of the first step must agree
before anything is compared. Runs take turns; a run's first step warms it up and is not counted. Two cores
each: ours as two ranks or as one rank of two threads, PyTorch with two threads. Peak memory is the whole
process."""

import argparse
import json
import math
import pathlib
import statistics
import tempfile
import time

from bench.contest import (
    PROGRAM,
    ROOT,
    Budget,
    Contender,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    cpu_multiplies_bf16,
    left_out,
    number,
    output,
    peer,
    program,
    run,
    seconds_of,
    with_cores,
)

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
MODELS = ("gpt", "llama")
OURS = {
    "ours, 2 ranks": ["parallelism.context_parallel_degree=2"],
    "ours, 1 rank of 2 threads": [
        "parallelism.context_parallel_degree=1",
        "parallelism.threads_per_rank=2",
    ],
}
PLAIN = "PyTorch, 2 threads"
OURS_ALONE = 65536  # of tokens: from here on a step takes PyTorch a quarter of an hour


def write_text(folder, tokens):
    """A document of as many bytes: with the separator after it, exactly one sequence and its labels."""
    text = (ROOT / "docs" / "architecture.md").read_bytes()
    path = pathlib.Path(folder) / "text.txt"
    path.write_bytes((text * (tokens // len(text) + 1))[:tokens])
    return path


def run_ours(args, settings, model, dtype, tokens, steps, folder, text):
    """The steps of one run of `armillary train`, as plain_decoder.py answers them."""
    values = [
        f"model.name={model}",
        f"model.dim={args.dim}",
        f"model.n_layers={args.layers}",
        "model.n_heads=8",
        f"training.dataset_path={text}",
        f"training.seq_len={tokens}",
        f"training.steps={steps}",
        f"training.mixed_precision_param={DTYPES[dtype]}",
        "optimizer.lr=3e-4",
        "parallelism.strategy=ring",
        "parallelism.layout=zigzag",
        "parallelism.mask=causal",
        f"job.dump_folder={folder}/run",
        "comm.train_timeout_seconds=1800",
        *settings,
    ]
    command = [str(PROGRAM), "train", str(ROOT / "recipes" / "default.toml"), "--json"]
    for value in values:
        command += ["--set", value]
    lines = [json.loads(line) for line in output(command, 7200).splitlines()]
    world = int(settings[0].rpartition("=")[2])
    return [
        {
            "seconds": tokens / world / line["tps"],
            **{key: line[key] for key in ("loss", "grad_norm", "memory_bytes")},
        }
        for line in lines
        if "step" in line
    ]


def require_same(first, dtype):
    """The first step is the same mathematics on both sides: to rounding in fp32, roughly in bf16."""
    if PLAIN not in first:
        return
    bound = 1e-3 if dtype == "fp32" else 5e-2
    for name, step in first.items():
        for key in ("loss", "grad_norm"):
            if abs(step[key] - first[PLAIN][key]) > bound * abs(first[PLAIN][key]):
                raise RefusedError(
                    f"{key} of {name} is {step[key]}, of {PLAIN} {first[PLAIN][key]}; within {bound} of it "
                    "is required; nothing is compared"
                )


def measure(args, model, dtype, tokens, least_rounds, seconds):
    """The rows of one model, length and dtype."""
    alone = tokens >= OURS_ALONE
    first, reasons, rounds, begin = {}, {}, [], time.monotonic()
    if alone:
        reasons[PLAIN] = "not run: too slow"
    elif dtype == "bf16" and not cpu_multiplies_bf16():
        reasons[PLAIN] = "not run: no BF16 instructions"
    with tempfile.TemporaryDirectory() as folder, Contender(program("cores")) as cores:
        text = write_text(folder, tokens)
        shape = ["--text", text, "--dim", args.dim, "--layers", args.layers]
        shape += ["--model", model, "--dtype", dtype]
        plain = None
        try:
            if PLAIN not in reasons:
                plain = Contender(peer("plain_decoder", *shape), timeout_s=3600)
                first[PLAIN] = plain.run("step")
        except RefusedError as refused:
            reasons[PLAIN] = str(refused)
        try:
            while len(rounds) < least_rounds or time.monotonic() - begin < seconds:
                rounds.append({"cores": math.inf})
                for name in [*OURS, PLAIN]:
                    if name in reasons:
                        continue
                    try:
                        # A round takes minutes: the least that any of its sides began with.
                        rounds[-1]["cores"] = min(rounds[-1]["cores"], cores.run("cores"))
                        if name == PLAIN:
                            done = [plain.run("step")]
                        else:
                            count = 1 if alone else 2
                            done = run_ours(args, OURS[name], model, dtype, tokens, count, folder, text)
                            first.setdefault(name, done[0])
                        rounds[-1][name] = done[-1]
                    except RefusedError as refused:
                        reasons[name] = str(refused)
                require_same(first, dtype)
        finally:
            if plain:
                plain.close()
    return rows(model, dtype, tokens, first, reasons, rounds)


def rows(model, dtype, tokens, first, reasons, rounds):
    """A row for each side: rates are medians of rounds with two cores, memory the most of any round."""
    kept, counts = with_cores(rounds)
    rate = {
        name: tokens / statistics.median(one[name]["seconds"] for one in kept)
        for name in [*OURS, PLAIN]
        if name not in reasons
    }
    for name in [*OURS, PLAIN]:
        row = {"bench": "train", "model": model, "dtype": dtype, "tokens": tokens, "who": name, **counts}
        if name not in rate:
            yield row | {"reasons": {"tokens_per_s": reasons[name]}}
            continue
        row |= {
            "tokens_per_s": rate[name],
            "memory_bytes": max(one[name]["memory_bytes"] for one in rounds),
            "first_loss": first[name]["loss"],
            "first_grad_norm": first[name]["grad_norm"],
        }
        if name != PLAIN and PLAIN in rate:
            row["over_pytorch"] = rate[name] / rate[PLAIN]
        yield row


COLUMNS = {
    "model": lambda row: row["model"],
    "dtype": lambda row: row["dtype"],
    "tokens": lambda row: f"{row['tokens']:,}",
    "who": lambda row: row["who"],
    "tokens/s": number("tokens_per_s", "{:.0f}"),
    "over PyTorch": number("over_pytorch", "{:.2f}"),
    "peak GiB": number("memory_bytes", "{:.2f}", 2**-30),
    "first loss": number("first_loss", "{:.4f}"),
    "gradient norm": number("first_grad_norm", "{:.4f}"),
    "rounds left out": left_out,
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench train", description=__doc__))
    parser.add_argument("--tokens", type=at_least_one, nargs="+", help="[4096 16384 65536]")
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--dim", type=at_least_one, default=512, help="width, a multiple of 16")
    parser.add_argument("--layers", type=at_least_one, default=6)
    args = parser.parse_args()
    lengths = args.tokens or ([1024] if args.quick else [4096, 16384, 65536])
    budget = Budget(args.quick)
    table = Table(args.json, COLUMNS)
    cells = [(model, tokens, dtype) for model in args.model for tokens in lengths for dtype in args.dtype]
    for model, tokens, dtype in budget.of(cells):
        least = 1 if tokens >= OURS_ALONE else 2 if args.quick else 3
        for row in measure(
            args, model, dtype, tokens, least, 0 if tokens >= OURS_ALONE else seconds_of(args, 20, 60)
        ):
            table.add(row)


if __name__ == "__main__":
    run(main)
