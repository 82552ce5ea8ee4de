"""Training a GPT and a Llama (6 layers, width 512, 8 heads, bytes) by `armillary train` and by plain PyTorch
on one process.

Both start from the same parameters on the same text; loss and gradient norm of the first step must agree
before anything is compared. Runs take turns; a run's first step warms it up and is not counted. All use two
cores: ours as two ranks or as one rank of two threads, PyTorch with two threads. Peak memory is that of the
whole process."""

import argparse
import pathlib
import tempfile

from bench.contest import (
    PROGRAM,
    ROOT,
    Budget,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    counts,
    cpu_multiplies_bf16,
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
OURS_ALONE = 65536  # tokens: from here on a step of PyTorch takes too long
DEADLINE_S = 7200  # of a run


def write_text(folder, tokens):
    """A document of `tokens` bytes: with the separator behind it, one sequence and its labels."""
    text = (ROOT / "docs" / "architecture.md").read_bytes()
    path = pathlib.Path(folder) / "text.txt"
    path.write_bytes((text * (tokens // len(text) + 1))[:tokens])
    return path


def settings_of(args, cell, folder):
    """The recipe of our runs in one cell, but for ranks and threads."""
    return [
        f"model.name={cell['model']}",
        f"model.dim={args.dim}",
        f"model.n_layers={args.layers}",
        "model.n_heads=8",
        f"training.dataset_path={folder}/text.txt",
        f"training.seq_len={cell['tokens']}",
        f"training.steps={1 if cell['tokens'] >= OURS_ALONE else 2}",
        f"training.mixed_precision_param={DTYPES[cell['dtype']]}",
        "optimizer.lr=3e-4",
        "parallelism.strategy=ring",
        "parallelism.layout=zigzag",
        "parallelism.mask=causal",
        f"job.dump_folder={folder}/run",
        "comm.train_timeout_seconds=1800",
    ]


def write_start(args, cell, folder):
    """The parameters with which our runs begin, as a folder: a step too small to change one of them."""
    small = {"training.seq_len": 16, "training.steps": 1, "optimizer.lr": 1e-30}
    small |= {"checkpoint.enable": "true", "job.dump_folder": f"{folder}/start"}
    settings = [*settings_of(args, cell, folder), *(f"{key}={value}" for key, value in small.items())]
    flags = [part for setting in settings for part in ("--set", setting)]
    output([PROGRAM, "train", ROOT / "recipes" / "default.toml", *flags])
    output([PROGRAM, "export", f"{folder}/start", f"{folder}/parameters", "--format", "armillary"])


def why_no_plain(cell):
    """The reason why plain PyTorch is not run, or None."""
    if cell["tokens"] >= OURS_ALONE:
        return "not run: too slow"
    if cell["dtype"] == "bf16" and not cpu_multiplies_bf16():
        return "not run: no BF16 instructions"
    return None


def contenders(args, cell, folder):
    """The flags of all contenders of a cell, by their names."""
    flags_by_name = {}
    for name, ranks in OURS.items():
        world = int(ranks[0].rpartition("=")[2])
        flags = ["--name", name, "--tokens", cell["tokens"] / world]
        for setting in [*settings_of(args, cell, folder), *ranks]:
            flags += ["--set", setting]
        flags_by_name[name] = peer("armillary_train", *flags)
    if not why_no_plain(cell):
        shape = [
            "--dim",
            args.dim,
            "--layers",
            args.layers,
            "--model",
            cell["model"],
            "--dtype",
            cell["dtype"],
            "--parameters",
            f"{folder}/parameters",
        ]
        write_start(args, cell, folder)
        flags_by_name[PLAIN] = peer("plain_decoder", "--name", PLAIN, "--text", f"{folder}/text.txt", *shape)
    return flags_by_name


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


def measure(args, cell, least, seconds):
    """The rows of one model, length and dtype."""
    with tempfile.TemporaryDirectory() as folder:
        write_text(folder, cell["tokens"])
        flags_by_name = contenders(args, cell, folder)
        against = [part for flags in flags_by_name.values() for part in flags]
        limits = ["--seconds", seconds, "--least", least, "--deadline", DEADLINE_S]
        (turns,) = results(program("turns", "--cores", *against, *limits))
    facts, reasons = {}, {PLAIN: why_no_plain(cell)}
    for name, contender in zip(flags_by_name, turns["contenders"], strict=True):
        if name in turns["medians"]:
            facts[name] = contender["facts"]
        else:
            reasons[name] = short(turns["reasons"].get(name) or contender["reason"])
    require_same(facts, cell["dtype"])
    return rows(cell, turns, facts, reasons)


def rows(cell, turns, facts, reasons):
    """A row for each side: rates are medians of the turns that count, memory the most of any turn."""
    rate = {name: cell["tokens"] / turns["medians"][name] for name in facts}
    for name in [*OURS, PLAIN]:
        row = {"bench": "train", **cell, "who": name, **counts(turns)}
        if name not in rate:
            yield row | {"reasons": {"tokens_per_s": reasons[name]}}
            continue
        row |= {
            "tokens_per_s": rate[name],
            "memory_bytes": facts[name]["memory_bytes"],
            "first_loss": facts[name]["loss"],
            "first_grad_norm": facts[name]["grad_norm"],
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
    "turns left out": left_out,
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
    cells = [
        {"model": model, "dtype": dtype, "tokens": tokens}
        for model in args.model
        for tokens in lengths
        for dtype in args.dtype
    ]
    for cell in budget.of(cells):
        alone = cell["tokens"] >= OURS_ALONE
        least = 1 if alone else 2 if args.quick else 3
        for row in measure(args, cell, least, 0 if alone else seconds_of(args, 20, 60)):
            table.add(row)


if __name__ == "__main__":
    run(main)
