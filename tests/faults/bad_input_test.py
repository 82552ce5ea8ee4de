"""Input that only runs over processes can have: every rank ends with an error, soon and before any step, and
the text says what is wrong."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time

import pytest
import runs

DEADLINE_S = 3
LONG_S = 60  # of ranks that need not wait: longer than the bound
BUSY_S = 30  # starting libtorch on a machine that does something else beside
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(bool(runs.why_not("c10d")), reason=f"[SKIP] {runs.why_not('c10d')}"),
]
# Refusals are the same on both engines; by default they are tried on the first that is there.
ALL = [name for name in runs.ENGINES if not runs.why_not(name)]
engines = pytest.mark.parametrize("engine", ALL if os.environ.get("ARMILLARY_TEST_ALL") else ALL[:1])
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="[SKIP] not root: no small disk can be mounted")


@contextlib.contextmanager
def port_of_a_program():
    """A port on which a program listens that is none of ours."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def a_port():
    with port_of_a_program() as port:
        return port


@contextlib.contextmanager
def small_disk(path, kib):
    """An empty disk of so many KiB."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def by_hand(folder, world, port, ranks, env=None, deadline_s=DEADLINE_S):
    """Codes and errors of ranks of c10d that are started by hand, one process for each entry of `ranks`."""
    words = [str(runs.PROGRAM), *runs.train(folder, world, deadline_s)]
    begin = time.monotonic()
    processes = [
        subprocess.Popen(
            [*words, "--engine", "c10d", "--rank", str(rank), "--master", f"127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        )
        for rank in ranks
    ]
    errors = [process.communicate(timeout=runs.LIMIT_S)[1] for process in processes]
    assert time.monotonic() - begin < DEADLINE_S + 1 + BUSY_S
    assert all(process.returncode != 0 for process in processes), errors
    assert not (folder / "run" / "metrics.jsonl").exists()
    print(errors)
    return errors


def launched(folder, engine, *more, world=2, **keys):
    """The ending of a run that cannot be."""
    words = [*runs.train(folder, world, 20, **keys), *more]
    with runs.Run(folder, engine, world, words=words) as run:
        ending = run.end()
    assert ending.left == [], ending.output
    assert ending.code != 0, ending.output
    print(ending.output)
    return ending


def test_a_rank_that_is_missing(tmp_path):
    (error,) = by_hand(tmp_path, 2, a_port(), [0])
    assert "rank 1 of 2 did not come within 3 s" in error
    (error,) = by_hand(tmp_path, 2, a_port(), [1])
    assert "run_c10d_rank: rank 1 " in error
    assert "the store" in error


def test_two_ranks_with_one_number(tmp_path):
    for error in by_hand(tmp_path, 3, a_port(), [0, 1, 1], deadline_s=LONG_S):
        assert "two processes have rank 1" in error


def test_a_port_that_is_in_use(tmp_path):
    with port_of_a_program() as port:
        first, second = by_hand(tmp_path, 2, port, [0, 1])
    assert f"rank 0 cannot open the store at 127.0.0.1:{port}" in first
    assert "run_c10d_rank: rank 1 " in second


def test_an_interface_that_is_not_there(tmp_path):
    for error in by_hand(
        tmp_path, 2, a_port(), [0, 1], env={"GLOO_SOCKET_IFNAME": "eth77"}, deadline_s=LONG_S
    ):
        assert "interface eth77" in error


@engines
def test_a_flight_file_that_one_rank_cannot_make(tmp_path, engine):
    (tmp_path / "run" / "flight" / "rank-0001.bin" / "full").mkdir(parents=True)
    ending = launched(tmp_path, engine)
    assert "rank-0001.bin cannot be made (Directory not empty)" in ending.output
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@engines
def test_a_failure_of_one_rank_before_the_first_step_is_the_cause(tmp_path, engine):
    (tmp_path / "run" / "metrics.jsonl").mkdir(parents=True)
    told = []
    for _ in range(2):  # the record of the first run is not taken for that of the second
        ending = launched(tmp_path, engine)
        assert "metrics.jsonl cannot be written" in ending.output
        # By its own ending, or by its record if a rank that heard of it ended first.
        match = re.search(r"rank 0 \(host [^,]*, pid (\d+)", ending.cause())
        assert match, ending.output
        told.append(match[1])
    assert told[0] != told[1]


@as_root
@engines
def test_a_disk_that_is_full_under_the_flight_recorder(tmp_path, engine):
    with small_disk(tmp_path / "disk", 80) as disk:
        ending = launched(tmp_path, engine, job__dump_folder=disk / "run")
    assert "cannot be made (No space left on device)" in ending.output
    assert ending.code == 2


@as_root
@engines
def test_a_disk_that_is_full_under_a_checkpoint(tmp_path, engine):
    keys = {"checkpoint__enable": "true", "checkpoint__interval": 3}
    with small_disk(tmp_path / "disk", 320) as disk:
        ending = launched(tmp_path, engine, job__dump_folder=disk / "run", **keys)
        assert not list(disk.glob("run/checkpoints/step-??????"))
    assert "checkpoint: step 3 is not saved: write: " in ending.output
    assert "(No space left on device)" in ending.output
    assert ending.code == 1


@engines
def test_a_checkpoint_of_another_model_is_refused_and_stays(tmp_path, engine):
    command = [str(runs.PROGRAM), *runs.train(tmp_path, 2, 20, checkpoint__enable="true", training__steps=3)]
    subprocess.run(command, check=True, capture_output=True)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for keys, text in (
        ({"model__dim": 64}, "model.dim = 64 given; model.dim = 32"),
        ({"training__mixed_precision_param": "bfloat16"}, "training.mixed_precision_param = "),
    ):
        ending = launched(tmp_path, engine, "--resume", checkpoint__enable="true", **keys)
        assert ending.code == 2
        assert len(re.findall(f" armillary: .*{re.escape(text)}", ending.output)) == 2, ending.output
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert after == before, "also the flight files of the run that ended well"


@engines
def test_folders_that_are_none(tmp_path, engine):
    file = tmp_path / "file"
    file.touch()
    for folder, reason in ((tmp_path / "none", "does not exist"), (file, "cannot be read (Not a directory)")):
        ending = launched(tmp_path, engine, "--init-from", str(folder))
        assert ending.code == 2
        assert f"'{folder}/config.json' {reason}; a readable file is required" in ending.output
    ending = launched(tmp_path, engine, "--resume", checkpoint__enable="true")
    assert ending.code == 2
    assert "has no whole checkpoint to resume from; one is required; nearest: train without" in ending.output
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@engines
def test_more_processes_than_the_recipe_has_ranks(tmp_path, engine):
    words = runs.train(tmp_path, 2, 20)
    with runs.Run(tmp_path, engine, 3, words=words) as run:
        ending = run.end()
    assert ending.code == 2
    assert ending.left == []
    assert "3 processes that " in ending.output
    assert (
        "parallelism.context_parallel_degree = 2; equal numbers are required; nearest: -n 2" in ending.output
    )


def expect_a_line_of_every_rank(ending, world, text):
    assert ending.left == [], ending.output
    assert ending.code == 2, ending.output
    told = [line for line in ending.output.splitlines() if " armillary: " in line]
    ranks = sorted(line.split()[1] for line in told)
    assert ranks == [f"{rank}]" for rank in range(world)], ending.output
    assert all(text in line for line in told), ending.output


def expect_no_step(folder):
    assert not (folder / "run" / "metrics.jsonl").exists()


@engines
def test_a_manifest_that_was_edited_is_one_line_on_a_rank(tmp_path, engine):
    keys = {"checkpoint__enable": "true"}
    command = [str(runs.PROGRAM), *runs.train(tmp_path, 2, 20, training__steps=3, **keys)]
    subprocess.run(command, check=True, capture_output=True)
    (manifest,) = (tmp_path / "run" / "checkpoints").glob("step-*/manifest.json")
    text = manifest.read_text()
    manifest.write_text(text.replace("parameters/", "parameter/", 1))
    assert manifest.read_text() != text
    ending = launched(tmp_path, engine, "--resume", **keys)
    expect_a_line_of_every_rank(ending, 2, "manifest.json is cut off or was changed: its ")
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 3


CLUSTER = runs.ROOT / "armillary" / "predict" / "sim" / "presets" / "clusters" / "c8.toml"
EDITS = [
    ("devices = 4", "devices = 0", "nodes.devices is 0; a whole number from 1 to "),
    ("GBps = 14.6", "GBp = 14.6", "GBps is missing; this key is required; nearest of those given: GBp"),
]


@engines
@pytest.mark.parametrize(("before", "after", "text"), EDITS)
def test_a_cluster_that_was_edited_is_one_line_on_a_rank(tmp_path, engine, before, after, text):
    preset = CLUSTER.read_text(encoding="utf-8")
    assert preset.count(before) == 1
    (tmp_path / "mine.toml").write_text(preset.replace(before, after), encoding="utf-8")
    ending = launched(tmp_path, engine, "--mesh", f"auto:{tmp_path}/mine.toml")
    expect_a_line_of_every_rank(ending, 2, text)
    expect_no_step(tmp_path)


MESHES = [
    (
        3,
        {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 2},
        {},
        "a mesh of dp 2 x cp 1 x tp 2; equal",
    ),
    (3, {"tensor_parallel_degree": 3}, {"model__n_heads": 2}, "over tp 3; "),
    (2, {"data_parallel_shard_degree": 2}, {"training__global_batch_size": 3}, "a multiple of 2 is required"),
    (2, {"tensor_parallel_keep_inputs": "true", "context_parallel_degree": 2}, {}, "nothing is gathered"),
]


@engines
@pytest.mark.parametrize(("world", "degrees", "keys", "text"), MESHES)
def test_a_mesh_that_cannot_be_is_one_line_on_a_rank(tmp_path, engine, world, degrees, keys, text):
    keys = keys | {f"parallelism__{name}": value for name, value in degrees.items()}
    words = runs.train(tmp_path, 1, 20, **{"training__global_batch_size": 2} | keys)
    with runs.Run(tmp_path, engine, world, words=words) as run:
        ending = run.end()
    expect_a_line_of_every_rank(ending, world, text)
    expect_no_step(tmp_path)


REFUSALS = [
    (["--set", "training.step=3"], "nearest: steps"),
    (["--dryrun"], "nearest: --dry-run"),
    (["--mesh", "c6"], "--mesh: 'c6' given; auto:CLUSTER is required"),
    (["--engine", "threads"], "each of which would do the whole run"),
    (["--set", "training.dataset_path=none"], "'none' does not exist"),
    (["--set", "training.seq_len=9999"], "nearest seq_len: 8000"),
    (["--set", "checkpoint.interval=5"], "nearest: checkpoint.enable = true"),
    (["--resume", "--init-from", "x"], "--resume and --init-from x given; one of them is required"),
]


@engines
@pytest.mark.parametrize(("words", "text"), REFUSALS)
def test_what_a_rank_refuses_by_itself_is_a_line_of_every_rank(tmp_path, engine, words, text):
    expect_a_line_of_every_rank(launched(tmp_path, engine, *words), 2, text)
    expect_no_step(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_stay_behind_a_refusal(number):
    process = subprocess.Popen(
        [str(runs.PROGRAM), "train", str(runs.ROOT / "recipes" / "default.toml"), "--dryrun"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"RANK": "1", "WORLD_SIZE": "2"},
    )
    line = process.stderr.readline()
    process.send_signal(number)
    _, more = process.communicate(timeout=runs.LIMIT_S)
    assert "nearest: --dry-run" in line
    assert (process.returncode, more) == (2, "")


@pytest.mark.skipif(bool(runs.why_not("mpi")), reason=f"[SKIP] {runs.why_not('mpi')}")
def test_a_refusal_is_a_line_of_every_rank_under_mpirun_itself(tmp_path):
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", str(runs.PROGRAM)]
    words += [*runs.train(tmp_path, 2, 20)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=runs.LIMIT_S)
    assert result.returncode == 2, result.stderr
    told = [line for line in result.stderr.splitlines() if line.startswith("armillary: ")]
    assert len(told) == 3, result.stderr
    assert all("; equal numbers are required; nearest: -n 2" in line for line in told), result.stderr


@pytest.mark.skipif(bool(runs.why_not("mpi")), reason=f"[SKIP] {runs.why_not('mpi')}")
def test_an_mpirun_that_refuses_says_so_itself(tmp_path):
    words = [str(runs.PROGRAM), *runs.train(tmp_path, 64, 20)]
    for flags, text in (([], "root" if os.geteuid() == 0 else "slots"), (["--allow-run-as-root"], "slots")):
        result = subprocess.run(
            ["mpirun", *flags, "-n", "64", *words], capture_output=True, text=True, timeout=runs.LIMIT_S
        )
        assert result.returncode != 0
        assert text in result.stderr
