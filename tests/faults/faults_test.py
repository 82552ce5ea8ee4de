"""Ranks as processes that are killed, stopped or exit, and peers that were started for another run: every
rank ends with an error, soon, one line names the cause, and nothing is left."""

import itertools
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest
import runs

DEADLINE_S = 2
LONG_S = 60  # a deadline by which a fault is not found: its peers are told
BUSY_S = 20  # more than the bound, for machines that do something else beside: lab/bench/faults.py is strict
UNABLE = {
    name: pytest.mark.skipif(bool(runs.why_not(name)), reason=f"[SKIP] {runs.why_not(name)}")
    for name in runs.ENGINES
}
ENGINES = [pytest.param(name, marks=mark) for name, mark in UNABLE.items()]
engines = pytest.mark.parametrize("engine", ENGINES)


def strikes(ranks, *sample):
    """Engines with the rank that a fault strikes: a sample that has each, or all with ARMILLARY_TEST_ALL."""
    pairs = itertools.product(runs.ENGINES, ranks) if os.environ.get("ARMILLARY_TEST_ALL") else sample
    places = [pytest.param(engine, rank, marks=UNABLE[engine]) for engine, rank in pairs]
    return pytest.mark.parametrize(("engine", "rank"), places)


# Rank 0 prints and meets, and there are one between and the last.
of_three = strikes(range(3), ("mpi", 0), ("mpi", 2), ("c10d", 0), ("c10d", 1))
of_two = strikes(range(2), ("mpi", 0), ("c10d", 1))
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not runs.PROGRAM.is_file(), reason=f"[SKIP] {runs.why_not('threads')}"),
]


def struck(folder, engine, rank, number, deadline_s=LONG_S, **options):
    """The ending of a run of three ranks, of which one gets a signal."""
    with runs.Run(folder, engine, 3, deadline_s=deadline_s, **options) as run:
        run.wait_for_step(3)
        pid = run.strike(rank, number)
        ending = run.end()
    assert ending.left == [], ending.output
    assert ending.code != 0, ending.output
    print(f"{engine}: {ending.seconds:.2f} s; {ending.cause()}")
    return ending, pid


def names_rank(rank, cause, pid):
    """The line has rank, host and pid of the culprit, its place in the run, and what it owes to whom."""
    assert re.search(rf"rank {rank} \(host \S+, pid {pid}\b", cause), cause
    assert re.search(r"in step \d+, ", cause), cause
    return cause


@of_three
def test_a_killed_rank_ends_all_within_a_second(tmp_path, engine, rank):
    ending, pid = struck(tmp_path, engine, rank, signal.SIGKILL)
    assert ending.code == 128 + signal.SIGKILL
    assert ending.seconds < 1 + BUSY_S
    assert f"rank {rank} (host {os.uname().nodename}, pid {pid}) was ended by signal 9" in ending.cause()
    names_rank(rank, ending.cause(), pid)


@of_three
def test_a_rank_that_exits_early_ends_all_within_a_second(tmp_path, engine, rank):
    ending, pid = struck(tmp_path, engine, rank, signal.SIGUSR2, preload="exit_early.c")
    assert ending.seconds < 1 + BUSY_S
    names_rank(rank, ending.cause(), pid)


@of_three
def test_a_stopped_rank_is_named_at_the_deadline(tmp_path, engine, rank):
    ending, pid = struck(tmp_path, engine, rank, signal.SIGSTOP, DEADLINE_S)
    assert DEADLINE_S - 0.5 < ending.seconds < DEADLINE_S + 1 + BUSY_S
    assert f"rank {rank} (host {os.uname().nodename}, pid {pid}) does not answer" in ending.output
    assert f"pid {pid}, stopped)" in names_rank(rank, ending.cause(), pid)


@engines
def test_a_rank_that_is_stopped_while_it_starts_is_named(tmp_path, engine):
    with runs.Run(tmp_path, engine, 3, deadline_s=DEADLINE_S) as run:
        run.wait_for(lambda: 2 in run.ranks())
        pid = run.strike(2, signal.SIGSTOP)
        ending = run.end()
    assert (ending.code, ending.left) == (1, []), ending.output
    print(f"{engine}: {ending.seconds:.2f} s; {ending.cause()}")
    who = f"rank 2 (host {os.uname().nodename}, pid {pid}) was stopped (SIGSTOP, or a debugger); rank "
    assert who in ending.cause()


@of_two
def test_a_stopped_rank_of_a_benchmark_is_named_at_the_deadline(tmp_path, engine, rank):
    sizes = ["--tokens", "64", "--heads", "1", "--head-dim", "8", "--seconds", "1000"]
    words = ["bench", "layer", *sizes, "--deadline", str(DEADLINE_S), "--flight", str(tmp_path / "flight")]
    with runs.Run(tmp_path, engine, 2, words=words) as run:
        run.wait_for_ops(tmp_path / "flight")
        pid = run.strike(rank, signal.SIGSTOP)
        ending = run.end()
    assert ending.left == [], ending.output
    assert ending.code != 0, ending.output
    assert ending.seconds < DEADLINE_S + 1 + BUSY_S
    assert f"rank {rank} (host {os.uname().nodename}, pid {pid}) does not answer" in ending.output


@of_two
def test_a_killed_rank_of_a_benchmark_is_named_with_its_op(tmp_path, engine, rank):
    sizes = ["--tokens", "2048", "--heads", "4", "--head-dim", "64", "--seconds", "1000"]
    with runs.Run(tmp_path, engine, 2, words=["bench", "layer", *sizes]) as run:
        run.wait_for_ops(pathlib.Path("/dev/shm"), f"armillary-{run.launcher.pid}-*/flight/**/rank*")
        pid = run.strike(rank, signal.SIGKILL)
        ending = run.end()
    assert ending.left == [], ending.output
    assert ending.code == 128 + signal.SIGKILL, ending.output
    assert ending.seconds < 1 + BUSY_S
    assert re.search(rf"cause: rank {rank} \(host \S+, pid {pid}, gone\) was in ", ending.cause()), (
        ending.output
    )


@pytest.mark.skipif(bool(runs.why_not("mpi")), reason=f"[SKIP] {runs.why_not('mpi')}")
def test_a_bench_without_ranks_is_refused_on_several_processes():
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", runs.PROGRAM, "bench", "kernel"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=runs.LIMIT_S, check=False)
    assert result.returncode == 2, result.stderr
    told = re.findall(r"bench kernel: this is rank ([01]) of 2 that Open MPI started", result.stderr)
    assert sorted(told) == ["0", "1"], result.stderr


@pytest.mark.parametrize("engine", ["threads", *ENGINES])
def test_a_rank_that_throws_ends_all_with_its_reason(tmp_path, engine):
    keys = {"checkpoint__enable": "true", "checkpoint__interval": 5}
    with runs.Run(tmp_path, engine, 3, deadline_s=20, **keys) as run:
        run.wait_for_step(7)
        folder = tmp_path / "run" / "checkpoints"
        folder.rename(tmp_path / "moved")  # the next checkpoint cannot be written
        folder.write_text("in the way")
        ending = run.end()
    assert ending.left == [], ending.output
    assert ending.code == 1
    # A text that is the same on all ranks names none of them; that of a launcher names a process.
    rank, told = (r"", ending.output) if engine == "threads" else (r"rank \d.*: ", ending.cause())
    assert re.search(rank + r"checkpoint: step \d+ is not saved", told), ending.output


@pytest.mark.parametrize("delay_s", [0.025, 0.3])
@engines
def test_a_stop_while_ranks_start_is_neither_lost_nor_a_failure(tmp_path, engine, delay_s):
    with runs.Run(tmp_path, engine, 2, deadline_s=20) as run:
        time.sleep(delay_s)
        run.launcher.send_signal(signal.SIGTERM)
        ending = run.end()
    assert ending.code == 0, ending.output
    assert ending.left == [], ending.output
    assert re.search("stopped by SIGTERM after step 0 of|launch: stopped before all ranks had", ending.output)
    assert run.steps() == 0


@engines
def test_the_rank_that_refuses_is_named_and_not_the_peer_that_hears_of_it(tmp_path, engine):
    (tmp_path / "run" / "metrics.jsonl").mkdir(parents=True)
    with runs.Run(tmp_path, engine, 3, deadline_s=20) as run:
        ending = run.end()
    assert ending.code == 2, ending.output
    assert ending.left == [], ending.output
    assert re.search(r"rank 0 \(host \S+, pid \d+\) exited with 2", ending.cause()), ending.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@engines
def test_a_stop_ends_a_benchmark_at_once_and_says_so(tmp_path, engine, number):
    sizes = ["--tokens", "64", "--heads", "1", "--head-dim", "8", "--seconds", "1000"]
    words = ["bench", "layer", *sizes, "--flight", str(tmp_path / "flight")]
    with runs.Run(tmp_path, engine, 2, words=words) as run:
        run.wait_for_ops(tmp_path / "flight")
        run.launcher.send_signal(number)
        ending = run.end()
    assert ending.left == [], ending.output
    assert ending.code == 128 + signal.SIGTERM, ending.output
    assert ending.seconds < 1 + BUSY_S
    assert ending.cause() == (
        "armillary: launch: stopped by a signal, which ends bench at once, without results"
    ), ending.output


@pytest.mark.parametrize("engine", ["threads", *ENGINES])
def test_a_second_run_in_one_folder_is_refused_and_the_first_goes_on(tmp_path, engine):
    with runs.Run(tmp_path, "threads", 2, deadline_s=20) as first:
        first.wait_for_step(3)
        words = runs.command(engine, 2, runs.train(tmp_path, 2, 20))
        second = subprocess.run(words, capture_output=True, text=True, timeout=runs.LIMIT_S, check=False)
        text = (
            rf"another run \(host \S+, pid {first.launcher.pid}\) writes into {tmp_path}/run; another folder"
        )
        assert second.returncode == 2, second.stderr
        ranks = range(1) if engine == "threads" else range(2)
        for rank in ranks:
            prefix = "" if engine == "threads" else rf"\[rank {rank}\] "
            assert re.search(f"{prefix}armillary: .*{text}", second.stderr), second.stderr
        steps = first.steps()
        first.wait_for_step(steps + 3)
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert '"step":1,' in lines[0].replace(" ", ""), "the first run's lines are there"
        first.launcher.kill()
        first.launcher.wait()
    # The lock of a run that was killed is free.
    command = [str(runs.PROGRAM), *runs.train(tmp_path, 2, 20, training__steps=2)]
    subprocess.run(command, check=True, capture_output=True, timeout=runs.LIMIT_S)
    expected = {"flight", "metrics.jsonl", "recipe.toml", "run.html"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == expected


def by_hand(engine, variants, env=None):
    """Codes and outputs of ranks that were started one by one, each with its own words."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | (env or {})
    if engine == "mpi":
        parts = []
        for words in variants:
            parts += [*([":"] if parts else []), "-n", "1", *words]
        flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--quiet"]
        result = subprocess.run(
            ["mpirun", *flags, *parts],
            capture_output=True,
            text=True,
            timeout=runs.LIMIT_S,
            check=False,
            env=env,
        )
        return [result.returncode] * len(variants), [result.stderr] * len(variants)
    place = ["--engine", "c10d", "--master", f"127.0.0.1:{free_port()}", "--rank"]
    processes = [
        subprocess.Popen(
            [*words, *place, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        for rank, words in enumerate(variants)
    ]
    errors = [process.communicate(timeout=runs.LIMIT_S)[1] for process in processes]
    return [process.returncode for process in processes], errors


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def other_version(folder):
    """A copy of the program that calls itself another version."""
    folder.mkdir()
    for name in ("armillary", "armillary-torch", "armillary-bench"):
        data = (runs.PROGRAM.parent / name).read_bytes()
        other = data.replace(b"0.1.0\0", b"0.9.9\0")
        (folder / name).write_bytes(other)
        (folder / name).chmod(0o700)
    assert other != data, "the version is written in another way"
    return folder / "armillary"


WORLD = "a world of 3|parallelism.context_parallel_degree = 3"
DIFFERENCES = {
    "plan": ({"parallelism__strategy": "ulysses"}, "parallelism.strategy = "),
    "configuration": ({"optimizer__lr": "0.5"}, "optimizer.lr = "),
    "world": ({"parallelism__context_parallel_degree": 3}, WORLD),
    "version": ({}, "version = "),
}


# By default each difference meets one engine; the comparison is the same on both.
SAMPLE = [("plan", "mpi"), ("configuration", "c10d"), ("world", "c10d"), ("version", "mpi")]


@pytest.mark.parametrize(
    ("difference", "engine"),
    itertools.product(DIFFERENCES, runs.ENGINES) if os.environ.get("ARMILLARY_TEST_ALL") else SAMPLE,
)
def test_a_peer_of_another_run_is_refused_on_every_rank(tmp_path, engine, difference):
    if why := runs.why_not(engine):
        pytest.skip(f"[SKIP] {why}")
    keys, text = DIFFERENCES[difference]
    program = other_version(tmp_path / "bin") if difference == "version" else runs.PROGRAM
    first = [str(runs.PROGRAM), *runs.train(tmp_path, 2, 3)]
    second = [str(program), *runs.train(tmp_path, 2, 3, **keys)]
    codes, errors = by_hand(engine, [first, second])
    assert all(code != 0 for code in codes), errors
    # mpirun ends the ranks that have not yet noticed: one text is enough there.
    says = any if (difference, engine) == ("world", "mpi") else all
    assert says(re.search(text, error) for error in errors), errors
    assert not (tmp_path / "run" / "metrics.jsonl").exists(), "no step was taken"
    assert runs.processes_of(tmp_path) == []
