"""Tokens prepared per second by `armillary data prepare` and by PyPI `tokenizers`, each on one core; and
what reading them takes of a training step.

The text is that of this project and of Python's own library, a document a file. Tokenizers are byte-level
BPE: SmolLM2's, and others trained here on the first quarter of the files. Ids must be equal before anything
is compared. Ours is a whole run of the program, which packs, hashes and syncs too; PyPI's begins with its
tokenizer in memory (peers/prepare.py). Reading is what the trainer does for a step of one rank, with files
in memory (programs/prepare_bench.cpp), beside the median step of a Llama (6 layers, width 512) of one
thread."""

import argparse
import json
import pathlib
import statistics
import sysconfig
import tempfile
from pydoc_data.topics import topics

from bench import tokenizer_files
from bench.contest import (
    PROGRAM,
    ROOT,
    Budget,
    RefusedError,
    Table,
    add_flags,
    at_least_one,
    counts,
    number,
    peer,
    program,
    results,
    run,
    seconds_of,
    short,
)

OURS, PYPI = "ours", "PyPI tokenizers"
SEQUENCE = 2048  # tokens
STEPS = 6
DEADLINE_S = 1800


def documents(most_bytes):
    """Texts, prose first, of so many bytes; the last may be cut."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    paths += [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]

    def all_of_them():
        yield from (topics[name] for name in sorted(topics))
        for path in paths:
            # Python's own tests have files in other encodings.
            yield path.read_bytes().decode("utf-8", "ignore")

    left = most_bytes
    for text in all_of_them():
        text = text.encode()[:left].decode("utf-8", "ignore")
        if text:
            yield text
        left -= len(text.encode())
        if left < 4:  # bytes of a character
            return


def write_text(folder, texts):
    folder.mkdir()
    for number_of, text in enumerate(texts):
        (folder / f"{number_of:05}.txt").write_bytes(text.encode())


def prepared(args, name, texts, folder):
    """The row of one tokenizer. Leaves our tokens in folder/name/ours."""
    try:
        tokenizer = tokenizer_files.make(name, texts[: len(texts) // 4 + 1], args.words)
    except RefusedError as refused:
        return {"bench": "prepare", "what": name, "reasons": {"ours_tokens_per_s": str(refused)}}
    (folder / name).mkdir()
    tokenizer.save(str(folder / name / "tokenizer.json"))
    flags = ["--tokenizer", folder / name / "tokenizer.json", "--text", folder / "text"]
    limits = ["--seconds", seconds_of(args, 5, 60), "--least", 3, "--deadline", DEADLINE_S]
    against = peer("prepare", *flags, "--folder", folder / name)
    (turns,) = results(program("turns", *against, *limits))
    (contender,) = turns["contenders"]
    if len(turns["medians"]) < 2:
        reasons = [contender.get("reason"), *turns["reasons"].values(), "not measured"]
        raise RefusedError(f"{name}: {short(next(filter(None, reasons)))}")
    tokens = contender["facts"]["tokens"]
    rates = {side: tokens / seconds for side, seconds in turns["medians"].items()}
    return {
        "bench": "prepare",
        "what": name,
        "vocabulary": contender["facts"]["vocabulary"],
        "bytes": sum(len(text.encode()) for text in texts),
        "tokens": tokens,
        "ours_tokens_per_s": rates[OURS],
        "pypi_tokens_per_s": rates[PYPI],
        "over_pypi": rates[OURS] / rates[PYPI],
        **counts(turns),
    }


def reading(args, name, folder):
    """The row of reading what was prepared."""
    settings = [
        "model.name=llama",
        f"model.dim={args.dim}",
        f"model.n_layers={args.layers}",
        "model.n_heads=8",
        f"training.dataset_path={folder / name / OURS}",
        f"training.seq_len={SEQUENCE}",
        f"training.steps={STEPS}",
        "parallelism.context_parallel_degree=1",
        "parallelism.mask=documents",
        f"job.dump_folder={folder / 'run'}",
    ]
    corpus = json.loads((folder / name / OURS / "corpus.json").read_text())
    settings.append(f"model.vocab_size={corpus['vocab_size']}")
    flags = [part for setting in settings for part in ("--set", setting)]
    (read,) = results([str(ROOT / "build" / "bin" / "prepare_bench"), *settings])
    lines = results([str(PROGRAM), "train", str(ROOT / "recipes" / "default.toml"), "--json", *flags])
    step_s = statistics.median([line["step_s"] for line in lines if "step" in line][1:])
    return {
        "bench": "prepare",
        "what": f"a step that reads {SEQUENCE:,} tokens",
        "vocabulary": corpus["vocab_size"],
        "read_seconds": read["seconds"],
        "step_seconds": step_s,
        "of_step": read["seconds"] / step_s,
        "turns": read["turns"],
    }


COLUMNS = {
    "what": lambda row: row["what"],
    "vocabulary": number("vocabulary", "{:,}"),
    "MB": number("bytes", "{:.1f}", 1e-6),
    "tokens": number("tokens", "{:,}"),
    "ours, tokens/s": number("ours_tokens_per_s", "{:,.0f}"),
    "PyPI tokenizers, tokens/s": number("pypi_tokens_per_s", "{:,.0f}"),
    "over PyPI": number("over_pypi", "{:.2f}"),
    "reading, us": number("read_seconds", "{:,.0f}", 1e6),
    "step, ms": number("step_seconds", "{:,.0f}", 1e3),
    "reading of a step": number("of_step", "{:.3f} %", 100),
    "turns": number("turns", "{}"),
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench prepare", description=__doc__))
    names = tokenizer_files.NAMES
    parser.add_argument("--tokenizer", nargs="+", default=names, choices=names)
    parser.add_argument("--bytes", type=at_least_one, help="of text [16000000; 2000000 if quick]")
    parser.add_argument("--words", type=at_least_one, default=16000, help="of a trained vocabulary [16000]")
    parser.add_argument("--dim", type=at_least_one, default=512, help="width of the Llama [512]")
    parser.add_argument("--layers", type=at_least_one, default=6)
    args = parser.parse_args()
    budget = Budget(args.quick)
    table = Table(args.json, COLUMNS)
    texts = list(documents(args.bytes or (2_000_000 if args.quick else 16_000_000)))
    last = None
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        write_text(folder / "text", texts)
        for name in budget.of(args.tokenizer):
            row = prepared(args, name, texts, folder)
            table.add(row)
            if "tokens" in row:
                last = name
        if last:
            table.add(reading(args, last, folder))


if __name__ == "__main__":
    run(main)
