"""Tokens of a folder of text by `armillary data prepare` and by PyPI `tokenizers`: a peer of
lab/bench/prepare.py.

Both are on one core, and PyPI's has one thread. The value is the seconds of one run: of ours as a program,
from its start to its end; of PyPI's in this process, with the tokenizer in memory and its cache of words
warm, from the files to ids in a memory-mapped file. The facts are the tokens, equal on both sides, and the
words."""

import argparse
import collections
import json
import os
import pathlib
import shutil
import time

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np  # noqa: E402
import tokenizers  # noqa: E402

from bench.contest import PROGRAM, output  # noqa: E402
from bench.peers.protocol import UnableError, claim_stdout, serve  # noqa: E402
from bench.prepare import OURS, PYPI, SEQUENCE  # noqa: E402
from bench.tokenizer_files import END  # noqa: E402

BATCH = 512  # documents


def prepare_ours(args):
    """Seconds of our program."""
    shutil.rmtree(args.folder / OURS, ignore_errors=True)
    flags = ["--source", args.text, "--extensions", ".txt", "--seq-len", SEQUENCE, "--packing", "cut"]
    flags += ["--tokenizer", args.tokenizer, "--separator", END]
    begin = time.perf_counter()
    output([str(PROGRAM), "data", "prepare", str(args.folder / OURS), *map(str, flags)])
    return time.perf_counter() - begin


def prepare_pypi(args, tokenizer):
    """Seconds of PyPI's; the ids of all documents, with the separator behind each, go to one file."""
    begin = time.perf_counter()
    paths = sorted(args.text.glob("*.txt"))
    dtype = np.uint16 if tokenizer.get_vocab_size() < 65536 else np.uint32
    end = tokenizer.token_to_id(END)
    parts = []
    for first in range(0, len(paths), BATCH):
        texts = [path.read_bytes().decode() for path in paths[first : first + BATCH]]
        # The variant without offsets, which is faster.
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            parts.append(np.array([*encoding.ids, end], dtype))
    shape = (sum(map(len, parts)),)
    ids = np.memmap(args.folder / "pypi.ids", dtype, "w+", shape=shape)
    np.concatenate(parts, out=ids)
    ids.flush()
    return time.perf_counter() - begin


def documents_of(ids, end):
    """How often each document is there, and what stands behind the last separator."""
    *documents, rest = np.split(ids, np.flatnonzero(ids == end) + 1)
    return collections.Counter(document.tobytes() for document in documents), rest


def require_equal(args, tokenizer):
    """Documents of both sides: ours are in another order, and without those of no whole sequence."""
    index = json.loads((args.folder / OURS / "corpus.json").read_text())
    dtype = np.uint16 if index["vocab_size"] < 65536 else np.uint32
    parts = []
    for shard in index["sources"][0]["shards"]:
        count = shard["sequences"] * (SEQUENCE + 1)
        rows = np.fromfile(args.folder / OURS / shard["file"], dtype, count)
        parts.append(rows.reshape(-1, SEQUENCE + 1)[:, :-1].ravel())
    ours, counts = np.concatenate(parts), index["sources"][0]["train"]
    theirs = np.memmap(args.folder / "pypi.ids", dtype, "r")
    if counts["tokens"] != len(theirs) or len(ours) + counts["dropped"] != len(theirs):
        raise UnableError(
            f"{counts['tokens']} tokens, of PyPI tokenizers {len(theirs)}; equal ones are required"
        )
    end = tokenizer.token_to_id(END)
    of_ours, _ = documents_of(ours, end)
    others = of_ours - documents_of(np.asarray(theirs), end)[0]
    if others:
        raise UnableError(f"{others.total()} documents have other ids than those of PyPI tokenizers")
    return len(theirs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="tokenizer.json")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="folder of .txt, a document each")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for what is written")
    args = parser.parse_args()
    answers = claim_stdout()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    tokenizer = tokenizers.Tokenizer.from_file(str(args.tokenizer))
    sides = {OURS: lambda: prepare_ours(args), PYPI: lambda: prepare_pypi(args, tokenizer)}
    for side in sides.values():
        side()
    facts, wrong = {"vocabulary": tokenizer.get_vocab_size()}, None
    try:
        facts["tokens"] = require_equal(args, tokenizer)
    except UnableError as unable:
        wrong = unable

    def run(side):
        if wrong:
            raise wrong
        return sides[side]()

    serve(answers, {"sides": list(sides), **facts}, run)


if __name__ == "__main__":
    main()
