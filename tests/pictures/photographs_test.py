"""A DiT learns squares of scikit-learn's two photographs, on a mesh as on one rank, and samples squares."""

import json
import sys

import numpy as np
import pytest
from picture_runs import PROGRAM, ROOT, built, flags, pixels, run

pytest.importorskip("sklearn", reason="[SKIP] Python has no scikit-learn: ./dev setup test")
pytest.importorskip("safetensors", reason="[SKIP] Python has no safetensors: ./dev setup test")

pytestmark = built

SIDE = 32
STEPS = 50
MODEL = {
    "model.image_height": SIDE,
    "model.image_width": SIDE,
    "model.channels": 3,
    "model.patch_size": 4,
    "model.n_classes": 2,
    "model.n_layers": 2,
}
TRAINING = {
    "training.seq_len": 64,
    "training.global_batch_size": 16,
    "training.local_batch_size": 8,
    "training.steps": STEPS,
    "lr_scheduler.warmup_steps": 5,
    "checkpoint.interval": STEPS,
}
ONE = {"parallelism.data_parallel_shard_degree": 1, "parallelism.context_parallel_degree": 1}
MESH = {"parallelism.data_parallel_shard_degree": 2, "parallelism.context_parallel_degree": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run on one rank and of one on the mesh."""
    folder = tmp_path_factory.mktemp("photographs")
    data = folder / "photographs.safetensors"
    # 13 x 20 squares of each photograph of 427 x 640.
    output = run(sys.executable, ROOT / "tools" / "pictures.py", data, "--squares", SIDE)
    assert f"520 pictures of {SIDE} x {SIDE}" in output
    folders = []
    for name, mesh in (("one", ONE), ("mesh", MESH)):
        folders.append(folder / name)
        files = {"training.dataset_path": data, "job.dump_folder": folder / name}
        run(PROGRAM, "train", ROOT / "recipes" / "digits.toml", *flags(MODEL | TRAINING | mesh | files))
    return folders


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return np.array([json.loads(line)["loss"] for line in lines])


def test_the_loss_falls_and_is_that_of_one_rank(runs):
    one, mesh = map(losses, runs)
    assert len(one) == STEPS
    assert one[-10:].mean() < 0.75 * one[:5].mean()
    np.testing.assert_allclose(mesh, one, rtol=1e-5)


def test_a_grid_is_full_and_the_same_on_one_rank(runs):
    """By ranks a half of the mesh, 2 ranks along cp, computes each of the two predictions."""
    grids = []
    for file, way, mesh in (("mesh.png", "ranks", MESH), ("one.png", "batch", ONE)):
        path = runs[1].parent / file
        words = ("--count", "9", "--steps", "10", "--guidance", "2", "--guidance-by", way)
        run(PROGRAM, "sample", runs[1], path, *words, *flags(mesh))
        grids.append(pixels(path))
    assert grids[0].shape == (3 * SIDE, 3 * SIDE, 3)
    squares = grids[0].reshape(3, SIDE, 3, SIDE, 3).swapaxes(1, 2).reshape(9, -1)
    assert (squares.std(axis=1) > 1).all(), "a square of one color"
    assert len(np.unique(squares, axis=0)) == 9
    assert np.abs(grids[0] - grids[1]).max() <= 1, "more than rounding to a level"
