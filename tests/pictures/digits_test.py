"""A DiT that the program trains on digits makes digits that a classifier of scikit-learn recognises."""

import os
import pathlib
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="[SKIP] Python has no scikit-learn: ./dev setup test")
pytest.importorskip("safetensors", reason="[SKIP] Python has no safetensors: ./dev setup test")

from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_digits
from sklearn.svm import SVC

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / os.environ.get("ARMILLARY_BUILD", "build") / "bin" / "armillary"
SECONDS = 1800

pytestmark = pytest.mark.skipif(
    not PROGRAM.is_file(), reason="[SKIP] build/bin/armillary is not built: ./dev build"
)


def run(*arguments):
    finished = subprocess.run(
        list(map(str, arguments)), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run on digits."""
    folder = tmp_path_factory.mktemp("digits")
    data = folder / "digits.safetensors"
    assert "1797 pictures of 8 x 8" in run(sys.executable, ROOT / "tools" / "pictures.py", data)
    settings = {"training.dataset_path": data, "job.dump_folder": folder / "run"}
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run(PROGRAM, "train", ROOT / "recipes" / "digits.toml", *flags)
    return folder / "run"


def test_a_classifier_recognises_most_guided_digits(trained):
    """Seed 0 of training and of sampling."""
    digits = load_digits()
    classifier = SVC(gamma=0.001).fit(digits.images.reshape(-1, 64), digits.target)
    file = trained.parent / "made.safetensors"
    run(PROGRAM, "sample", trained, file, "--count", "200", "--guidance", "2")
    sampled = load_file(file)
    levels = ((sampled["pictures"].reshape(-1, 64) + 1) * 8).clip(0, 16).round()
    share = (classifier.predict(levels) == sampled["classes"]).mean()
    assert share >= 0.8, f"{share:.1%} of 200 digits"


def test_pictures_are_the_same_on_another_mesh(trained):
    first, second = trained.parent / "first.safetensors", trained.parent / "second.safetensors"
    flags = ("--count", "4", "--steps", "5", "--guidance", "2")
    run(PROGRAM, "sample", trained, first, *flags)
    mesh = ("parallelism.context_parallel_degree=2", "parallelism.tensor_parallel_degree=2")
    run(PROGRAM, "sample", trained, second, *flags, "--two-passes", "--set", mesh[0], "--set", mesh[1])
    one, other = load_file(first), load_file(second)
    assert (one["classes"] == [0, 1, 2, 3]).all() and (other["classes"] == one["classes"]).all()
    assert np.abs(one["pictures"] - other["pictures"]).max() <= 1e-5 * np.abs(one["pictures"]).max()


def test_a_png_has_the_values(trained):
    """Read without libpng: chunks, the filters of rows, all by the format's text."""
    values, grid = trained.parent / "grid.safetensors", trained.parent / "grid.png"
    for file in (values, grid):
        run(PROGRAM, "sample", trained, file, "--count", "6", "--steps", "2", "--classes", "7,none")
    data, at, body = grid.read_bytes(), 8, b""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == b"IDAT":
            body += data[at + 8 : at + 8 + size]
        at += 12 + size
    # Three pictures in a row of gray pixels: 24 wide, 16 high.
    assert struct.unpack_from(">IIBB", data, 16) == (24, 16, 8, 0)
    rows = unfiltered(zlib.decompress(body), 24)
    pictures = load_file(values)["pictures"]
    levels = ((pictures[..., 0] + 1) * 127.5).clip(0, 255)
    expected = np.concatenate([np.concatenate(list(levels[i : i + 3]), axis=1) for i in (0, 3)], axis=0)
    assert np.abs(rows - expected).max() <= 0.51


def unfiltered(data, width):
    """Rows of gray pixels, each behind the number of its filter."""
    rows = []
    for begin in range(0, len(data), width + 1):
        kind, row = data[begin], list(data[begin + 1 : begin + 1 + width])
        above = rows[-1] if rows else [0] * width
        for i in range(width):
            left, corner = (row[i - 1], above[i - 1]) if i else (0, 0)
            guess = left + above[i] - corner
            nearest = min((left, above[i], corner), key=lambda value: abs(guess - value))
            row[i] = (row[i] + (0, left, above[i], (left + above[i]) // 2, nearest)[kind]) % 256
        rows.append(row)
    return np.array(rows, dtype=float)


def test_classes_that_are_not_there_are_refused(tmp_path):
    pictures, classes = np.zeros((2, 8, 8, 1), np.uint8), np.array([0, 10], np.int64)
    save_file({"pictures": pictures, "classes": classes}, tmp_path / "bad.safetensors")
    path = f"training.dataset_path={tmp_path / 'bad.safetensors'}"
    folder = f"job.dump_folder={tmp_path / 'run'}"
    command = [PROGRAM, "train", ROOT / "recipes" / "digits.toml", "--set", path, "--set", folder]
    finished = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 2
    assert "classes has 10 at 1; one at least 0 and below 10" in finished.stderr
