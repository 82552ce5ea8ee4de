"""A rank that is killed while it reads a prompt, or while it decodes: all end soon, one line has its name,
and nothing is left."""

import os
import signal
import subprocess

import pytest
import runs

WORLD = 3
BUSY_S = 20  # more than the second of a quiet machine
UNABLE = {
    name: pytest.mark.skipif(bool(runs.why_not(name)), reason=f"[SKIP] {runs.why_not(name)}")
    for name in runs.ENGINES
}
#: A line of progress that has come before the signal, and one that has not.
PHASES = {"prefill": ("2000 of", "12000 of 12000"), "decode": ("12000 of 12000", "decoded in")}
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not runs.PROGRAM.is_file(), reason=f"[SKIP] {runs.why_not('threads')}"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A run of one step, which is a model of bytes, beside a prompt."""
    folder = tmp_path_factory.mktemp("model")
    keys = {"checkpoint__enable": "true", "training__steps": 1, "training__seq_len": 64, "model__dim": 64}
    words = runs.train(folder, 1, 20, **keys)
    subprocess.run(runs.command("threads", 1, words), check=True, capture_output=True)
    (folder / "prompt.txt").write_bytes(bytes(ord("a") + at * at % 26 for at in range(12000)))
    return folder


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("engine", "rank"),
    [
        pytest.param("mpi", 0, marks=UNABLE["mpi"]),
        pytest.param("mpi", 2, marks=UNABLE["mpi"]),
        pytest.param("c10d", 1, marks=UNABLE["c10d"]),
    ],
)
def test_a_killed_rank_ends_all_within_a_second(tmp_path, model, phase, engine, rank):
    before, behind = PHASES[phase]
    words = ["generate", str(model / "run"), "--prompt-file", str(model / "prompt.txt"), "--tokens", "100000"]
    words += ["--chunk", "1000", "--ranks", str(WORLD)]
    with runs.Run(tmp_path, engine, WORLD, words=words) as run:
        run.wait_for(lambda: before in run.text())
        pid = run.strike(rank, signal.SIGKILL)
        ending = run.end()
    print(f"{engine}: {phase}: {ending.seconds:.2f} s; {ending.cause()}")
    assert behind not in ending.output
    assert ending.left == [], ending.output
    assert ending.code == 128 + signal.SIGKILL, ending.output
    assert ending.seconds < 1 + BUSY_S
    assert f"rank {rank} (host {os.uname().nodename}, pid {pid}) was ended by signal 9" in ending.cause()
