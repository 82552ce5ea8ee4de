"""A run over processes that is killed again and again, and resumed on other meshes and stages of ZeRO: its
curve and its last parameters are those of a run on threads that was never killed, up to rounding."""

import array
import json
import os
import random
import signal
import struct
import subprocess
import time

import pytest
import runs

COUNT = 20 if os.environ.get("ARMILLARY_TEST_ALL") else 4
BOUND = 1e-6  # of the loss, and of parameters: ranks sum in another order
KEYS = {
    "training__dataset_path": runs.ROOT / "README.md",
    "training__seq_len": 256,
    "training__global_batch_size": 2,
    "model__dim": 64,
    "optimizer__lr": 3e-5,  # at a high rate a step multiplies rounding, also without a kill
    "checkpoint__enable": "true",
    "checkpoint__interval": 3,
    "checkpoint__keep_latest_k": 3,
}
DEADLINE_S = 60
pytestmark = pytest.mark.skipif(bool(runs.why_not("mpi")), reason=f"[SKIP] {runs.why_not('mpi')}")


def curve(folder):
    """[(step, loss)] of the whole lines of metrics.jsonl."""
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(step["step"], step["loss"]) for step in map(json.loads, lines)]


def kill(run, moments):
    """Kills a rank or, as often, the launcher."""
    ranks = run.ranks()
    if ranks and moments.random() < 0.5:
        run.strike(moments.choice(sorted(ranks)), signal.SIGKILL)
    else:
        run.launcher.kill()


MESHES = [(1, 2, 1), (1, 3, 1), (1, 4, 1), (2, 1, 1), (2, 2, 1), (1, 1, 2), (1, 2, 2), (2, 1, 2)]


def checkpoints(folder):
    return sorted(folder.glob("run/checkpoints/step-??????"))


def killed_run(folder, moments, early):
    """Begins or resumes a run on a mesh of 2 to 4 ranks, and kills it; `early`: while it starts."""
    dp, cp, tp = moments.choice(MESHES)
    world = dp * cp * tp
    mesh = {
        "parallelism__data_parallel_shard_degree": dp,
        "parallelism__tensor_parallel_degree": tp,
        "parallelism__zero": moments.choice([0, 1, 2, 3]),
    }
    words = runs.train(folder, cp, DEADLINE_S, **KEYS | mesh)
    if checkpoints(folder):
        words.append("--resume")
    before = curve(folder)
    with runs.Run(folder, "mpi", world, words=words) as run:
        if not early:
            run.wait_for(lambda: len(curve(folder)) > 0 and curve(folder)[-1] not in [(), *before])
        time.sleep(moments.random())
        kill(run, moments)
        ending = run.end()
    assert ending.left == [], ending.output
    assert ending.code != 0, ending.output


def parameters(folder, step):
    """{name: values} of the parameters after a step, as they are exported."""
    saved, model = folder / "run" / "checkpoints" / step, folder / f"model-{step}"
    words = [str(runs.PROGRAM), "export", saved, model, "--format", "armillary"]
    subprocess.run(words, check=True, capture_output=True)
    data = (model / "model.safetensors").read_bytes()
    front = 8 + struct.unpack("<Q", data[:8])[0]
    places = {
        name: info["data_offsets"]
        for name, info in json.loads(data[8:front]).items()
        if name != "__metadata__"
    }
    return {
        name: array.array("f", data[front + begin : front + end]) for name, (begin, end) in places.items()
    }


def test_the_curve_of_a_run_that_is_killed_is_that_of_one_that_is_not(tmp_path):
    moments = random.Random(11)
    killed = tmp_path / "killed"
    killed.mkdir()
    for number in range(COUNT):
        killed_run(killed, moments, early=number % 5 == 3)
    steps = curve(killed)
    last = checkpoints(killed)[-1].name
    whole = tmp_path / "whole"
    whole.mkdir()
    words = runs.train(whole, 2, DEADLINE_S, **KEYS | {"checkpoint__keep_latest_k": 0})
    with runs.Run(whole, "threads", 2, words=words) as run:
        run.wait_for(lambda: len(curve(whole)) >= len(steps) and (whole / "run/checkpoints" / last).exists())
    expected = curve(whole)[: len(steps)]
    assert [step for step, _ in steps] == [step for step, _ in expected]
    worst = max(abs(loss - other) / other for (_, loss), (_, other) in zip(steps, expected, strict=True))
    mine, others = parameters(killed, last), parameters(whole, last)
    assert mine.keys() == others.keys()
    errors = {
        name: max(abs(a - b) for a, b in zip(values, others[name], strict=True))
        for name, values in mine.items()
    }
    name = max(errors, key=errors.get)
    print(f"{COUNT} kills, {len(steps)} steps: {worst:.2g} of the loss, {errors[name]:.2g} in {name}")
    assert worst < BOUND
    assert errors[name] < BOUND
