"""A run over processes that is killed again and again, and resumed on other numbers of ranks: its curve is
that of a run on threads that was never killed, up to rounding."""

import json
import os
import random
import signal
import time

import pytest
import runs

COUNT = 30 if os.environ.get("ARMILLARY_TEST_ALL") else 4
BOUND = 1e-6  # of the loss: ranks sum in another order
KEYS = {
    "training__dataset_path": runs.ROOT / "README.md",
    "training__seq_len": 256,
    "model__dim": 64,
    "optimizer__lr": 3e-4,  # at a high rate a step multiplies rounding, also without a kill
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


def killed_run(folder, moments, early):
    """Begins or resumes a run on 2 to 4 ranks, and kills it; `early`: while it starts."""
    world = moments.choice([2, 3, 4])
    words = runs.train(folder, world, DEADLINE_S, **KEYS)
    if list(folder.glob("run/checkpoints/step-??????")):
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


def test_the_curve_of_a_run_that_is_killed_is_that_of_one_that_is_not(tmp_path):
    moments = random.Random(11)
    killed = tmp_path / "killed"
    killed.mkdir()
    for number in range(COUNT):
        killed_run(killed, moments, early=number % 5 == 3)
    steps = curve(killed)
    whole = tmp_path / "whole"
    whole.mkdir()
    words = runs.train(whole, 2, DEADLINE_S, **KEYS | {"checkpoint__enable": "false"})
    with runs.Run(whole, "threads", 2, words=words) as run:
        run.wait_for(lambda: len(curve(whole)) >= len(steps))
    expected = curve(whole)[: len(steps)]
    assert [step for step, _ in steps] == [step for step, _ in expected]
    worst = max(abs(loss - other) / other for (_, loss), (_, other) in zip(steps, expected, strict=True))
    print(f"{COUNT} kills, {len(steps)} steps, largest difference {worst:.2g} of the loss")
    assert worst < BOUND
