"""SmolLM2-135M reads a long prompt and continues it: armillary on one rank and on two beside transformers
with SDPA, and llama.cpp where Python has llama_cpp, each in a process of its own. All take all cores.

The prompt is the language reference that Python has with it. In fp32 the logits behind the prompt must agree
to 1e-4 of the largest and the greedy tokens be equal before anything is compared; in bf16 errors against ours
in fp32 are at most 2.5 times those of transformers. llama.cpp is compared if its logits agree to 1e-2: its
angles are fp32. Sides take turns. "over transformers" is its time over ours, of the prompt and of a token
behind it (the median of a continuation); "a core" the rate of two ranks on the same cores over that of one.
Memory is the peak of private memory (process_memory.py) once a process is warm. --long is another table:
the memory of a prompt on 1, 2 and 4 processes (serve_long.py)."""

import argparse
import importlib.util
import json
import os
import pathlib
import shlex
import sys
import tempfile
from pydoc_data.topics import topics

import numpy

from bench import serve_long
from bench.contest import (
    BENCH,
    PROGRAM,
    ROOT,
    Budget,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    counts,
    left_out,
    number,
    output,
    peer,
    program,
    results,
    run,
    short,
)
from bench.finetune import smollm2, write_start
from bench.llama_file import write_floats

OURS = {"ours, 1 rank": 1, "ours, 2 ranks": 2}
ONE, TWO = OURS
TRANSFORMERS, LLAMA = "transformers", "llama.cpp"
LOGIT_BOUND = 1e-4  # of the largest
LLAMA_BOUND = 1e-2
BF16_RATIO = 2.5  # of errors
CORES = os.cpu_count() or 1


def text_of_prompts():
    return "\n\n".join(topics[name] for name in sorted(topics))


def write_ids(model, folder, tokens):
    """The ids of so many tokens of the text; of a model that is not SmolLM2 its bytes."""
    path = pathlib.Path(folder, f"ids_{tokens}.npy")
    if model is None:
        ids = numpy.frombuffer(text_of_prompts().encode()[:tokens], numpy.uint8)
    else:
        text, data = pathlib.Path(folder, "prompt.txt"), pathlib.Path(folder, f"tokens_{tokens}")
        text.write_text(text_of_prompts(), encoding="utf-8")
        flags = ["--tokenizer", model, "--source", text, "--seq-len", str(tokens), "--packing", "cut"]
        output([PROGRAM, "data", "prepare", data, *flags])
        index = json.loads((data / "corpus.json").read_text(encoding="utf-8"))
        shard = index["sources"][0]["shards"][0]
        ids = numpy.fromfile(data / shard["file"], "<u2", tokens)  # the first sequence
        ids = ids[ids < numpy.iinfo("<u2").max]  # which stands for no token
    if len(ids) < tokens:
        raise RefusedError(f"--tokens {tokens}; at most {len(ids)}, those of the text, are required", 2)
    numpy.save(path, ids.astype(numpy.int64))
    return path


class Contest:
    """The models and prompts of all cells, and a peer for each who reads them."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.smollm2 = None if args.model else smollm2()
        self.model = args.model or f"{folder}/model"
        self.gguf = None
        if self.smollm2:
            write_start(self.smollm2, folder)
            if importlib.util.find_spec("llama_cpp"):
                self.gguf = f"{folder}/fp32.gguf"
                write_floats(self.smollm2, f"{folder}/model", self.gguf)
        self.ids = {}

    def names(self, cell):
        """llama.cpp has one model, in fp32; where it is absent its row says so."""
        others = [TRANSFORMERS, LLAMA] if self.smollm2 and cell["dtype"] == "fp32" else [TRANSFORMERS]
        return [*OURS, *others]

    def logits(self, name):
        return pathlib.Path(self.folder, f"logits_{name.replace(' ', '_')}.npy")

    def flags(self, cell, name):
        tokens = cell["tokens"]
        if tokens not in self.ids:
            self.ids[tokens] = write_ids(self.smollm2, self.folder, tokens)
        library = "ours" if name in OURS else name
        model = self.gguf or "absent" if name == LLAMA else self.model
        flags = ["--name", name, "--library", library, "--model", model, "--ids", self.ids[tokens]]
        flags += ["--logits", self.logits(name), "--dtype", cell["dtype"], "--new", self.args.new]
        return [*flags, "--ranks", OURS.get(name, 1), "--threads", CORES, "--chunk", self.args.chunk]

    def reference(self, cell):
        """The logits of ours in fp32, of which nothing is timed."""
        flags = self.flags(cell | {"dtype": "fp32"}, ONE)
        output([sys.executable, BENCH, "peers.reader", *map(str, flags), "--once"])
        return numpy.load(self.logits(ONE))


def difference(logits_V, required_V):
    """The largest difference over the largest logit."""
    return float(numpy.abs(logits_V - required_V).max() / numpy.abs(required_V).max())


def refuse(row, text):
    raise RefusedError(
        f"{row['dtype']}, {row['tokens']} tokens, {row['who']} beside {TRANSFORMERS}: {text}; "
        "nothing is compared"
    )


def check(row, mine, theirs, reference=None):
    """Adds how far the logits of ours are from those of transformers. @raises RefusedError: too far."""
    equal = [a == b for a, b in zip(mine["greedy"], theirs["greedy"], strict=True)]
    row["equal_tokens"] = equal.index(False) if False in equal else len(equal)
    if reference is None:
        row["error"] = difference(mine["logits"], theirs["logits"])
        if not row["error"] <= LOGIT_BOUND:  # NaN too
            refuse(row, f"logits differ by {row['error']:.1e} of the largest; {LOGIT_BOUND} is required")
        if not all(equal):
            refuse(row, f"greedy tokens {mine['greedy']} and {theirs['greedy']}; equal ones are required")
        return
    row["error"] = difference(mine["logits"], reference)
    row["their_error"] = difference(theirs["logits"], reference)
    if not row["error"] <= BF16_RATIO * row["their_error"]:
        refuse(
            row,
            f"an error of {row['error']:.1e} and one of {row['their_error']:.1e}; at most {BF16_RATIO} "
            "times it is required",
        )


def compare(row, facts, reference=None):
    """Adds the ratios of one of ours to its row. @raises RefusedError as check()."""
    mine = facts[row["who"]]
    if TRANSFORMERS in facts:
        check(row, mine, facts[TRANSFORMERS], reference)
    for key in ("prefill", "decode"):
        for name, other in ((TRANSFORMERS, "transformers"), (LLAMA, "llama")):
            if name in facts:
                row[f"{key}_over_{other}"] = facts[name][f"{key}_s"] / mine[f"{key}_s"]
        if row["who"] == TWO and ONE in facts:
            row[f"{key}_a_core"] = facts[ONE][f"{key}_s"] / mine[f"{key}_s"]
    if TRANSFORMERS in facts:
        row["memory_over_transformers"] = mine["memory_bytes"] / facts[TRANSFORMERS]["memory_bytes"]


def facts_of(contest, names, turns):
    """Seconds, memory, tokens and logits of each contender that ran, and the reasons of the others."""
    facts, reasons = {}, {}
    for name, contender in zip(names, turns["contenders"], strict=True):
        sides = {key: f"{name} {key}" for key in ("prefill", "decode")}
        missing = [side for side in sides.values() if side not in turns["medians"]]
        if missing:
            reason = turns["reasons"].get(missing[0]) or contender.get("reason") or "no turn"
            reasons[name] = f"left out: {short(reason)}"
            continue
        facts[name] = {f"{key}_s": turns["medians"][side] for key, side in sides.items()}
        facts[name]["memory_bytes"] = contender["facts"]["memory_bytes"]
        facts[name]["greedy"] = contender["facts"]["tokens"]
        facts[name]["logits"] = numpy.load(contest.logits(name))
    if LLAMA in facts and TRANSFORMERS in facts:
        error = difference(facts[LLAMA]["logits"], facts[TRANSFORMERS]["logits"])
        if not error <= LLAMA_BOUND:
            reasons[LLAMA] = f"left out: logits differ by {error:.1e}"
            del facts[LLAMA]
    return facts, reasons


def measure(contest, cell):
    """The rows of one dtype and length."""
    args, names = contest.args, contest.names(cell)
    peers = [word for name in names for word in peer("reader", *contest.flags(cell, name))]
    least = args.least or (1 if args.quick or cell["tokens"] > 8192 else 3)
    limits = ["--seconds", args.seconds or 0, "--least", least, "--deadline", args.deadline]
    (turns,) = results(program("turns", "--cores", *peers, *limits))
    facts, reasons = facts_of(contest, names, turns)
    reference = None
    if cell["dtype"] == "bf16" and TRANSFORMERS in facts:
        reference = contest.reference(cell)
    for name in names:
        row = {"bench": "serve", **cell, "chunk": args.chunk, "new": args.new, "who": name, **counts(turns)}
        if name in reasons:
            yield row | {"reasons": {"prefill_s": reasons[name]}}
            continue
        row |= {key: facts[name][key] for key in ("prefill_s", "decode_s", "memory_bytes", "greedy")}
        row["tokens_per_s"] = cell["tokens"] / row["prefill_s"]
        if name in OURS:
            compare(row, facts, reference)
        yield row


COLUMNS = {
    "dtype": lambda row: row["dtype"],
    "tokens": lambda row: f"{row['tokens']:,}",
    "who": lambda row: row["who"],
    "prefill s": number("prefill_s", "{:.2f}"),
    "tokens/s": number("tokens_per_s", "{:.0f}"),
    "over transformers": number("prefill_over_transformers", "{:.2f}"),
    "over llama.cpp": number("prefill_over_llama", "{:.2f}"),
    "a core": number("prefill_a_core", "{:.2f}"),
    "ms a token": number("decode_s", "{:.1f}", 1e3),
    "token over transformers": number("decode_over_transformers", "{:.2f}"),
    "token over llama.cpp": number("decode_over_llama", "{:.2f}"),
    "token, a core": number("decode_a_core", "{:.2f}"),
    "memory GiB": number("memory_bytes", "{:.2f}", 2**-30),
    "memory over transformers": number("memory_over_transformers", "{:.2f}"),
    "error": number("error", "{:.0e}"),
    "error of transformers": number("their_error", "{:.0e}"),
    "equal tokens": number("equal_tokens", "{}"),
    "turns left out": left_out,
}


def parse():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench serve", description=__doc__))
    parser.add_argument("--tokens", type=at_least_one, nargs="+", help="of a prompt [8192 32768]")
    parser.add_argument("--dtype", nargs="+", default=["fp32"], choices=("fp32", "bf16"), help="[fp32]")
    parser.add_argument("--model", help="a folder of Hugging Face, whose words are bytes [SmolLM2-135M]")
    parser.add_argument("--chunk", type=int, default=0, help="most tokens that ours reads at once [all]")
    parser.add_argument("--new", type=at_least_one, default=32, help="tokens of a continuation [32]")
    parser.add_argument("--least", type=at_least_one, help="turns at least [3; 1 above 8192 tokens]")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no cell begins later")
    parser.add_argument("--deadline", type=at_least_one, default=3600, help="seconds of an answer")
    serve_long.add_flags(parser)
    args = parser.parse_args()
    if args.chunk < 0:
        raise RefusedError(f"--chunk {args.chunk} given; at least 1, or 0 for whole prompts, is required", 2)
    return args


def main():
    args = parse()
    os.environ["PYTHONPATH"] = str(ROOT / "build" / "python")
    print(f"bench: {shlex.join(['./dev', 'bench', 'serve', *sys.argv[1:]])}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        if args.long:
            serve_long.measure_all(args, args.model or smollm2(), folder, text_of_prompts())
            return
        contest = Contest(args, folder)
        table = Table(args.json, COLUMNS)
        lengths = args.tokens or ([512] if args.quick else [8192, 32768])
        cells = [{"dtype": dtype, "tokens": tokens} for tokens in lengths for dtype in args.dtype]
        for cell in Budget(args.quick, 60 * args.minutes).of(cells):
            for row in measure(contest, cell):
                table.add(row)


if __name__ == "__main__":
    run(main)
