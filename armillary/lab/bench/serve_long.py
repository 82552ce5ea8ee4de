"""The memory of a long prompt over processes: `./dev bench serve --long`.

`armillary generate` reads the prompt on 1, 2 and 4 processes. "peaks" are those of private memory of each
process (process_memory.py); "prompt" is what the largest has beyond the largest of a run with a short prompt,
so without weights and libraries. "of 1/N" is that times the ranks over that of one rank: 1 if memory falls
as 1/N. "--dry-run" is its estimate without parameters, of a prompt that is read at once."""

import json
import pathlib
import signal
import subprocess
import sys

from bench.contest import (
    ENGINES,
    PROGRAM,
    ROOT,
    RefusedError,
    Table,
    at_least_one,
    number,
    on_engine,
    results,
    short,
)
from bench.process_memory import Watch

SHORT_TOKENS = 16


def add_flags(parser):
    group = parser.add_argument_group("with --long")
    group.add_argument("--long", action="store_true", help="memory of a prompt over processes")
    group.add_argument("--ranks", type=at_least_one, nargs="+", default=[1, 2, 4], help="[1 2 4]")
    group.add_argument("--engine", default="mpi", choices=ENGINES, help="of the processes [mpi]")
    group.add_argument("--cluster", default="c5", help="of --dry-run, whose memory is the same on all [c5]")
    group.add_argument("--limit", type=float, default=7200, help="seconds of a run at most [7200]")


def generate(args, model, prompt, dtype, *flags):
    words = ["generate", model, "--prompt-file", prompt, "--dtype", dtype, "--tokens", 1, "--json", *flags]
    return [str(PROGRAM), *map(str, words)]


def estimate(args, model, prompt, dtype, ranks):
    """The object of --dry-run."""
    flags = ["--ranks", ranks, "--dry-run", "--cluster", args.cluster]
    (line,) = results(generate(args, model, prompt, dtype, *flags))
    return line


def write_prompt(args, model, path, text, tokens):
    """As many characters of the text as have so many tokens: one more would be too many."""

    def count(characters):
        path.write_text(text[:characters], encoding="utf-8")
        return estimate(args, model, path, "fp32", 1)["prompt"]

    fits, above = 1, min(len(text), 16 * tokens) + 1
    while above - fits > 1:
        middle = (fits + above) // 2
        if count(middle) <= tokens:
            fits = middle
        else:
            above = middle
    has = count(fits)  # The file has them now.
    if has < tokens and fits == len(text):
        raise RefusedError(f"--tokens {tokens}; at most {has}, those of the text, are required", 2)


def peaks_of(args, model, prompt, dtype, ranks):
    """The line of a run, and the peaks of its processes."""
    command = generate(args, model, prompt, dtype, "--ranks", ranks, "--chunk", args.chunk)
    # One rank needs no launcher.
    command = on_engine(args.engine if ranks > 1 else "threads", ranks, command)
    processes = 1 if args.engine == "threads" else ranks
    with Watch("armillary-torch", str(prompt), processes) as memory:
        try:
            result = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=args.limit, check=False
            )
        except subprocess.TimeoutExpired as late:
            raise RefusedError(f"{ranks} ranks: not done within {args.limit} s") from late
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["generate"]
        raise RefusedError(short(lines[-1]), result.returncode)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if len(memory.private_peaks) != processes:
        raise RefusedError(f"{ranks} ranks: {len(memory.private_peaks)} of {processes} processes were seen")
    return json.loads(line), sorted(memory.private_peaks.values())


def measure(args, model, prompts, dtype, ranks):
    """The row of so many processes, without what is relative to one."""
    line, peaks = peaks_of(args, model, prompts["long"], dtype, ranks)
    _, idle = peaks_of(args, model, prompts["short"], dtype, ranks)
    memory = estimate(args, model, prompts["long"], dtype, ranks)["memory_bytes"]
    processes = len(peaks)
    return {
        "bench": "serve_long",
        "dtype": dtype,
        "engine": args.engine,
        "ranks": ranks,
        "tokens": line["prompt_tokens"],
        "first_token": line["tokens"][:1],
        "prefill_s": line["prefill_s"],
        "cache_bytes": line["cache_bytes"],
        "peak_bytes": peaks,
        # Threads share a process.
        "prompt_bytes": (peaks[-1] - idle[-1]) * processes / ranks,
        "predicted_bytes": memory["total"] - memory["parameters"],
    }


def ratio(part, of):
    return part / of if of > 0 else None  # too little to be seen


def relative(row, one):
    """The row with what it is beside the first. @raises RefusedError if its token is another one."""
    if row["first_token"] != one["first_token"]:
        raise RefusedError(
            f"{row['ranks']} ranks: first token {row['first_token']}; {one['first_token']}, that of "
            f"{one['ranks']}, is required; nothing is compared"
        )
    return row | {
        "of_share": ratio(row["prompt_bytes"] * row["ranks"], one["prompt_bytes"] * one["ranks"]),
        "predicted_over_prompt": ratio(row["predicted_bytes"], row["prompt_bytes"]),
    }


COLUMNS = {
    "dtype": lambda row: row["dtype"],
    "tokens": lambda row: f"{row['tokens']:,}",
    "engine": lambda row: row["engine"],
    "ranks": lambda row: row["ranks"],
    "prefill s": number("prefill_s", "{:.1f}"),
    "peaks MiB": lambda row: " ".join(f"{peak / 2**20:,.0f}" for peak in row["peak_bytes"]),
    "cache MiB": number("cache_bytes", "{:,.0f}", 2**-20),
    "prompt MiB": number("prompt_bytes", "{:,.0f}", 2**-20),
    "of 1/N": number("of_share", "{:.2f}"),
    "--dry-run MiB": number("predicted_bytes", "{:,.0f}", 2**-20),
    "predicted over prompt": number("predicted_over_prompt", "{:.2f}"),
}


def measure_all(args, model, folder, text):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the run is ended then
    table = Table(args.json, COLUMNS)
    prompts = {"short": pathlib.Path(folder, "short.txt"), "long": pathlib.Path(folder, "long.txt")}
    write_prompt(args, model, prompts["short"], text, SHORT_TOKENS)
    for tokens in args.tokens or ([2048] if args.quick else [65536]):
        write_prompt(args, model, prompts["long"], text, tokens)
        for dtype in args.dtype:
            one = None
            for ranks in args.ranks:
                row = measure(args, model, prompts, dtype, ranks)
                one = one or row
                table.add(relative(row, one))
