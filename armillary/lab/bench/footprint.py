"""Memory and time of a recipe on processes of this machine, beside the memory that `--dry-run` predicts.

The text is docs/. "together" is the sum of the peaks of all processes, pages of libraries in each; "shared
once" the largest sum of their proportional set sizes, which are looked at every second. "largest" is the
peak of a rank beyond that of the same recipe with a model that is next to nothing: what --dry-run predicts,
and "predicted" is the prediction over it."""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile

from bench.contest import (
    ENGINES,
    PROGRAM,
    ROOT,
    RefusedError,
    Table,
    add_flags,
    number,
    on_engine,
    percent,
    results,
    run,
    short,
)
from bench.process_memory import Watch

RECIPE = ROOT / "recipes" / "llama-135m.toml"
QUICK = {"model.n_layers": 2, "training.seq_len": 256}
TEXT = {"training.dataset_path": ROOT / "docs", "training.dataset_extensions": ".md"}
IDLE = {
    "model.dim": 16,
    "model.n_layers": 1,
    "model.n_heads": 1,
    "model.n_kv_heads": 1,
    "model.hidden_dim": 16,
    "model.vocab_size": 257,
    "training.seq_len": 64,
    "training.steps": 2,
}


def command_of(recipe, settings, *flags):
    words = [str(PROGRAM), "train", str(recipe), "--json", *flags]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    return words


def train(recipe, settings, engine, ranks, limit_s):
    """The lines of the steps of a run, and the memory of its processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(recipe, settings | {"job.dump_folder": f"{folder}/run"})
        processes = 1 if engine == "threads" else ranks
        with Watch("armillary-torch", folder, processes, pss_s=1) as memory:
            result = subprocess.run(
                on_engine(engine, ranks, command),
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
    if result.returncode != 0:
        raise RefusedError(short((result.stderr.strip().splitlines() or ["train"])[-1]), result.returncode)
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if "step" in line], memory


def measure(args, recipe, settings, engine):
    (predicted,) = results(command_of(recipe, settings, "--dry-run"))
    ranks = predicted["world"]
    _, idle = train(recipe, settings | IDLE, engine, ranks, args.limit)
    steps, memory = train(recipe, settings, engine, ranks, args.limit)
    # Threads share a process.
    a_process = ranks // len(memory.peaks)
    largest = (max(memory.peaks.values()) - max(idle.peaks.values())) / a_process
    return {
        "bench": "footprint",
        "recipe": recipe.stem,
        "engine": engine,
        "parameters": predicted["parameters"],
        "ranks": ranks,
        "tokens": predicted["tokens_per_step"],
        "step_seconds": [predicted["tokens_per_step"] / ranks / step["tps"] for step in steps],
        "loss": steps[-1]["loss"],
        "memory_bytes": memory.peak_bytes(),
        "pss_bytes": memory.pss_bytes,
        "largest_bytes": largest,
        "predicted_bytes": predicted["memory_bytes"]["total"],
        "predicted_over_largest": predicted["memory_bytes"]["total"] / largest,
    }


COLUMNS = {
    "recipe": lambda row: row["recipe"],
    "engine": lambda row: row["engine"],
    "parameters": lambda row: f"{row['parameters']:,}",
    "ranks": lambda row: row["ranks"],
    "tokens": lambda row: f"{row['tokens']:,}",
    "steps, s": lambda row: ", ".join(f"{seconds:.1f}" for seconds in row["step_seconds"]),
    "last loss": number("loss", "{:.4f}"),
    "together GiB": number("memory_bytes", "{:.2f}", 2**-30),
    "shared once GiB": number("pss_bytes", "{:.2f}", 2**-30),
    "largest MiB": number("largest_bytes", "{:,.0f}", 2**-20),
    "--dry-run MiB": number("predicted_bytes", "{:,.0f}", 2**-20),
    "predicted": percent("predicted_over_largest"),
}


def main():
    parser = add_flags(argparse.ArgumentParser(prog="./dev bench footprint", description=__doc__))
    parser.add_argument("--recipe", type=pathlib.Path, default=RECIPE, help="[llama-135m]")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], help="as for `armillary train`"
    )
    parser.add_argument("--engines", nargs="+", default=["mpi"], choices=ENGINES, help="[mpi]")
    parser.add_argument("--limit", type=float, default=3600, help="seconds of a run at most [3600]")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the run is ended then
    settings = TEXT | (QUICK if args.quick else {})
    settings |= dict(setting.partition("=")[::2] for setting in args.settings)
    table = Table(args.json, COLUMNS)
    for engine in args.engines:
        table.add(measure(args, args.recipe.resolve(), settings, engine))


if __name__ == "__main__":
    run(main)
