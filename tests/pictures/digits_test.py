"""A DiT that the program trains on digits makes digits that a classifier of scikit-learn recognises."""

import subprocess
import sys

import numpy as np
import pytest
from picture_runs import PROGRAM, ROOT, built, flags, pixels, run

pytest.importorskip("sklearn", reason="[SKIP] Python has no scikit-learn: ./dev setup test")
pytest.importorskip("safetensors", reason="[SKIP] Python has no safetensors: ./dev setup test")

from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_digits
from sklearn.svm import SVC

pytestmark = built


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run on digits."""
    folder = tmp_path_factory.mktemp("digits")
    data = folder / "digits.safetensors"
    assert "1797 pictures of 8 x 8" in run(sys.executable, ROOT / "tools" / "pictures.py", data)
    settings = {"training.dataset_path": data, "job.dump_folder": folder / "run"}
    run(PROGRAM, "train", ROOT / "recipes" / "digits.toml", *flags(settings))
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
    """Guidance by a batch on one rank, by passes on threads, by ranks on processes."""
    cp_and_tp = {"parallelism.context_parallel_degree": 2, "parallelism.tensor_parallel_degree": 2}
    halves = {"parallelism.data_parallel_shard_degree": 2}
    sampled = []
    for name, verb, way, mesh in (
        ("batch", ["sample"], "batch", {}),
        ("passes", ["sample"], "passes", cp_and_tp),
        ("ranks", ["launch", "-n", "2", "--", "sample"], "ranks", halves),
    ):
        file = trained.parent / f"{name}.safetensors"
        words = ("--count", "4", "--steps", "5", "--guidance", "2", "--guidance-by", way)
        run(PROGRAM, *verb, trained, file, *words, *flags(mesh))
        sampled.append(load_file(file))
    one = sampled[0]
    assert (one["classes"] == [0, 1, 2, 3]).all()
    for other in sampled[1:]:
        assert (other["classes"] == one["classes"]).all()
        error = np.abs(one["pictures"] - other["pictures"]).max()
        assert error <= 1e-5 * np.abs(one["pictures"]).max()


def test_a_png_has_the_values(trained):
    values, grid = trained.parent / "grid.safetensors", trained.parent / "grid.png"
    for file in (values, grid):
        run(PROGRAM, "sample", trained, file, "--count", "6", "--steps", "2", "--classes", "7,none")
    rows = pixels(grid)
    assert rows.shape == (16, 24, 1), "three pictures in a row of gray pixels"
    pictures = load_file(values)["pictures"]
    levels = ((pictures[..., 0] + 1) * 127.5).clip(0, 255)
    expected = np.concatenate([np.concatenate(list(levels[i : i + 3]), axis=1) for i in (0, 3)], axis=0)
    assert np.abs(rows[..., 0] - expected).max() <= 0.51


def test_pictures_that_are_not_finite_are_no_png(trained):
    """The first step of such a guidance leads beyond fp32, and the second one to no number."""
    words = ("--count", "2", "--steps", "2", "--guidance", "1e300")
    command = [PROGRAM, "sample", trained, trained.parent / "far.png", *words]
    finished = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 2
    assert "pictures have values that are not finite" in finished.stderr
    assert not (trained.parent / "far.png").exists()


def test_classes_that_are_not_there_are_refused(tmp_path):
    pictures, classes = np.zeros((2, 8, 8, 1), np.uint8), np.array([0, 10], np.int64)
    save_file({"pictures": pictures, "classes": classes}, tmp_path / "bad.safetensors")
    files = {"training.dataset_path": tmp_path / "bad.safetensors", "job.dump_folder": tmp_path / "run"}
    command = [PROGRAM, "train", ROOT / "recipes" / "digits.toml", *flags(files)]
    finished = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 2
    assert "classes has 10 at 1; one at least 0 and below 10" in finished.stderr
