"""A batch that makes the loss jump, in a run over processes: the guard ends all ranks, or they go back to the
last checkpoint together and leave it out. The curve is that of threads, bit for bit."""

import json
import random

import pytest
import runs

DEADLINE_S = 60
STEPS, SEQ_LEN = 40, 64
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(bool(why), reason=f"[SKIP] {why}"))
    for name, why in ((name, runs.why_not(name)) for name in runs.ENGINES)
]
pytestmark = pytest.mark.skipif(not runs.PROGRAM.is_file(), reason=f"[SKIP] {runs.why_not('threads')}")


def text_with_a_spike(folder):
    """Documents of two letters, and one of bytes that no other has, in some sequences of an epoch.
    A run reads all of them."""
    text = folder / "text"
    text.mkdir()
    moments = random.Random(5)
    for number in range(17):
        (text / f"{number:02}.txt").write_text("".join(moments.choices("ab", k=2 * SEQ_LEN)))
    letters = "".join(map(chr, range(0x400, 0x4FF)))
    (text / "strange.txt").write_text("".join(moments.choices(letters, k=2 * SEQ_LEN)), encoding="utf-8")
    return text


def guarded(folder, guard, **keys):
    """The words of a run of two ranks whose steps read one sequence each."""
    return runs.train(
        folder,
        2,
        DEADLINE_S,
        **{
            "training__dataset_path": text_with_a_spike(folder),
            "training__dataset_extensions": ".txt",
            "training__seq_len": SEQ_LEN,
            "training__steps": STEPS,
            "training__spike_guard": guard,
            "training__spike_window": 6,
            "training__spike_loss_factor": 2.5,
            "training__spike_norm_factor": "inf",
            "training__spike_rollbacks": 20,
            "optimizer__lr": 0.01,
            "checkpoint__enable": "true",
            "checkpoint__interval": 4,
        }
        | keys,
    )


def run_to_the_end(folder, engine, guard, **keys):
    folder.mkdir(exist_ok=True)
    with runs.Run(folder, engine, 2, words=guarded(folder, guard, **keys)) as run:
        ending = run.end()
    assert ending.left == [], ending.output
    return ending


def curve(folder):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [(line["step"], line["loss"], line["grad_norm"]) for line in map(json.loads, lines)]


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_go_back_together_and_leave_the_batch_out(tmp_path, engine):
    ending = run_to_the_end(tmp_path / "processes", engine, "rollback")
    assert ending.code == 0, ending.output
    assert "rollback 1 of at most 20, training.spike_skip = batch: batch " in ending.output
    steps = curve(tmp_path / "processes")
    assert [step for step, _, _ in steps] == list(range(1, STEPS + 1))
    losses = [loss for _, loss, _ in steps]
    assert max(losses[12:]) < losses[0]
    assert '"notices":[[' in (tmp_path / "processes" / "run" / "run.html").read_text()
    threads = run_to_the_end(tmp_path / "threads", "threads", "rollback")
    assert threads.code == 0, threads.output
    assert curve(tmp_path / "threads") == steps


@pytest.mark.parametrize("engine", ["threads", *ENGINES])
def test_a_guard_that_stops_ends_every_rank_and_names_the_spike(tmp_path, engine):
    ending = run_to_the_end(tmp_path / "run", engine, "stop")
    assert ending.code == 1, ending.output
    assert " times the median " in ending.output
    page = (tmp_path / "run" / "run" / "run.html").read_text()
    if engine == "threads":  # a rank of a process may be ended before it writes
        assert '"state":"failed"' in page


@pytest.mark.parametrize("engine", ["threads", *ENGINES])
def test_without_a_checkpoint_a_rollback_ends_every_rank(tmp_path, engine):
    ending = run_to_the_end(tmp_path / "run", engine, "rollback", checkpoint__interval=1000)
    assert ending.code == 1, ending.output
    assert "there is no checkpoint yet to go back to" in ending.output
