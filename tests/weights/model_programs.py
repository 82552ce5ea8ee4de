"""The programs that these tests start."""

import pathlib
import subprocess

import pytest
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "bin" / "armillary"
LOGITS = ROOT / "build" / "bin" / "model_logits"
SECONDS = 300
#: Largest error of a logit, over the largest logit.
BOUND = 1e-4

built = pytest.mark.skipif(
    not PROGRAM.is_file() or not LOGITS.is_file(),
    reason="[SKIP] build/bin has no armillary or no model_logits: ./dev build --all",
)


def run(*words):
    return subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)


def output_of(*words):
    finished = run(*words)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def our_logits(path, tokens, scratch, cp=1, tp=1, strategy="ring"):
    """Logits of our model of a folder or a GGUF file, on cp x tp threads."""
    save_file({"tokens": tokens}, scratch / "tokens.safetensors")
    output_of(LOGITS, path, scratch / "tokens.safetensors", scratch / "logits.safetensors", cp, tp, strategy)
    return load_file(scratch / "logits.safetensors")["logits"]


def assert_equal_logits(got, required, bound=BOUND):
    assert got.shape == required.shape
    error = ((got - required).abs().max() / required.abs().max()).item()
    assert error <= bound, f"the largest error is {error} of the largest logit"


def train(folder, source, *more, steps=1, **keys):
    """Words of a run of a model that is there, with 96 tokens and a rate near 0."""
    settings = {
        "model.from": source,
        "training.dataset_path": ROOT / "README.md",
        "training.seq_len": 96,
        "training.steps": steps,
        "training.global_batch_size": 1,
        "parallelism.context_parallel_degree": 1,
        "optimizer.lr": 1e-6,
        "job.dump_folder": folder,
        "checkpoint.enable": "true",
    } | {key.replace("__", "."): value for key, value in keys.items()}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [PROGRAM, "train", ROOT / "recipes" / "default.toml", *words, "--init-from", source, *more]
