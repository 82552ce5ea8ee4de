"""Fine-tuning by the Trainer of transformers on one process: a peer of lab/bench/finetune.py.

The side NAME is one run from its start, a process of its own, whose value is the median of the seconds of
its steps but for the first, which warms it up. It reads the sequences of a folder of `armillary data prepare`
in the order of `armillary train`; AdamW is PyTorch's fused one and decays all parameters, as ours does; bf16
is autocast over fp32 parameters. Facts: "losses" of the steps; "memory_bytes", the most that its private
memory ever was (process_memory.py)."""

import argparse
import json
import pathlib
import statistics
import sys
import time

from bench.contest import BENCH, RefusedError, output
from bench.peers.protocol import UnableError, claim_stdout, serve
from bench.process_memory import private_peak, sizes

IGNORED = -100  # a label of transformers


def scrambled(x):
    """The finisher of SplitMix64 (armillary/text/corpus/keyed_permutation.cpp)."""
    most = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & most
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & most
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & most
    return x ^ x >> 31


def permuted(i, count, *key_numbers):
    """Element i of the permutation of [0, count) with that key."""
    key = 0
    for number in key_numbers:
        key = scrambled(key ^ number)
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = 2**half - 1
    while True:
        left, right = i >> half, i & mask
        for turn in range(6):
            left, right = right, left ^ scrambled(key ^ scrambled(right << 3 | turn)) & mask
        i = left << half | right
        if i < count:
            return i


def examples_of(folder, count):
    """The first `count` sequences of a run of seed 0, of a corpus of one source that is one document."""
    import numpy
    import torch

    index = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    (source,) = index["sources"]
    (shard,) = source["shards"]
    length, sequences = index["seq_len"], shard["sequences"]
    dtype = numpy.dtype("<u2" if index["vocab_size"] < 2**16 else "<u4")
    words = numpy.fromfile(folder / shard["file"], dtype, sequences * (length + 1))
    rows = words.reshape(sequences, length + 1).astype(numpy.int64)
    rows[rows == numpy.iinfo(dtype).max] = IGNORED  # nothing follows
    for number in range(count):
        epoch, place = divmod(number, sequences)
        drawn = permuted(place, sequences, 0, 1, epoch)
        row = torch.from_numpy(rows[permuted(drawn, sequences, 0, 2, 0, epoch)])
        # `shift_labels` are the labels as they are; without them the last token would have none.
        yield {"input_ids": row[:-1], "labels": row[:-1], "shift_labels": row[1:]}


def train(args):
    """Losses, seconds of the steps behind the first, and memory."""
    import torch
    import transformers

    class Clock(transformers.TrainerCallback):
        """The ends of steps, and their losses."""

        def __init__(self):
            self.ends, self.losses = [], []

        def on_step_end(self, *_, **__):
            self.ends.append(time.perf_counter())

        def on_log(self, *_, logs, **__):
            if "loss" in logs:
                self.losses.append(logs["loss"])

    torch.set_num_threads(args.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="sdpa"
    )
    adamw = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    settings = transformers.TrainingArguments(
        output_dir=str(args.folder),
        use_cpu=True,
        bf16=args.dtype == "bf16",
        max_steps=args.steps,
        per_device_train_batch_size=args.local_batch,
        gradient_accumulation_steps=args.batch // args.local_batch,
        activation_checkpointing=args.recompute == "full",
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        learning_rate=args.lr,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    clock = Clock()
    transformers.Trainer(
        model,
        settings,
        train_dataset=list(examples_of(args.data, args.steps * args.batch)),
        optimizers=(adamw, None),
        callbacks=[clock],
    ).train()
    seconds = [end - begin for begin, end in zip(clock.ends, clock.ends[1:], strict=False)]
    return {"losses": clock.losses, "seconds": seconds, "memory_bytes": private_peak(sizes())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True, help="of the side")
    parser.add_argument("--model", required=True, help="folder that transformers loads")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="of `armillary data prepare`")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="of the run")
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--recompute", default="none", choices=("none", "full"), help="of layers in backward")
    parser.add_argument("--batch", type=int, required=True, help="sequences of a step")
    parser.add_argument("--local-batch", type=int, required=True, help="of them in a pass")
    parser.add_argument("--steps", type=int, required=True, help="of a run, with the one that warms up")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--once", action="store_true", help="train and print what was measured")
    args = parser.parse_args()
    answers = claim_stdout()
    if args.once:
        answers.write(json.dumps(train(args)))
        answers.flush()
        return
    facts = {}

    def run(_):
        try:
            text = output([sys.executable, str(BENCH), "peers.hf_trainer", *sys.argv[1:], "--once"])
        except RefusedError as refused:
            raise UnableError(str(refused)) from refused
        measured = json.loads(text)
        facts["losses"] = measured["losses"]
        facts["memory_bytes"] = max(facts.get("memory_bytes", 0), measured["memory_bytes"])
        return statistics.median(measured["seconds"]), facts

    serve(answers, {"sides": [args.name]}, run)


if __name__ == "__main__":
    main()
