"""Training and attention through mpirun over hosts that are network namespaces of this machine: results are
those of threads, and between hosts travels what the plan says."""

import json
import os
import pathlib
import re
import subprocess
import time

import hosts as emulated
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "bin"
WHY_NOT = emulated.why_not() or ("" if (BIN / "bytes_between_hosts").exists() else "a build without MPI")
# Seconds of quiet before a link is looked at, seconds between looks, and looks without an answer.
KEEPALIVE = (("time", "intvl", "probes"), ("1", "1", "2"))
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"[SKIP] {WHY_NOT}"),
]


def recipe(folder, world, steps, *more):
    settings = [
        f"training.dataset_path={ROOT}/docs/architecture.md",
        f"job.dump_folder={folder}/run",
        f"parallelism.context_parallel_degree={world}",
        f"training.steps={steps}",
        "training.seq_len=512",
        "model.dim=64",
        "model.n_layers=2",
        *more,
    ]
    flags = [word for setting in settings for word in ("--set", setting)]
    return [BIN / "armillary", "train", ROOT / "recipes" / "default.toml", *flags]


def losses(folder):
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [(step["loss"], step["grad_norm"]) for step in map(json.loads, lines)]


@pytest.mark.parametrize("count", [2, 4])
def test_training_over_hosts_has_the_losses_of_threads(tmp_path, count):
    result = subprocess.run(recipe(tmp_path, 4, 5), capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    on_threads = losses(tmp_path)
    with emulated.Hosts(count, "1gbit") as hosts:
        result = hosts.mpirun(4, recipe(tmp_path, 4, 5))
    assert result.returncode == 0, result.stderr
    assert len(on_threads) == 5
    assert losses(tmp_path) == on_threads


@pytest.mark.parametrize(
    ("count", "strategies"),
    [
        (2, ["ring", "usp:u=2", "double_ring:window=2", "tokenring:nodes=2"]),
        (4, ["startrail:c=2,placement=p2p_intra", "startrail:c=2,placement=collect_intra", "allgather"]),
    ],
)
def test_between_hosts_travels_what_the_plan_says(count, strategies):
    world = 4 if count == 2 else 8
    with emulated.Hosts(count) as hosts:
        result = hosts.mpirun(world, [BIN / "bytes_between_hosts", 2048, world // count, *strategies])
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["strategy"] for row in rows] == strategies
    for row in rows:
        assert row["planned_bytes"] > 1e6
        assert row["given_bytes"] == row["planned_bytes"], row
        # Headers, acknowledgements and barriers.
        assert row["planned_bytes"] < row["wire_bytes"] < 1.03 * row["planned_bytes"], row
    print(rows)


def passes_once_of(tries, measure):
    """One of a few measurements is as it should be: a busy machine spoils one, a fault all."""
    measured = []
    for _ in range(tries):
        right, figures = measure()
        measured.append(figures)
        if right:
            return
    pytest.fail(f"none of {tries}: {measured}")


@pytest.mark.parametrize(("count", "strategy"), [(2, "ulysses"), (4, "usp:u=2")])
def test_hosts_that_exchange_messages_send_at_the_same_time(count, strategy):
    """Links are so slow that what a busy core adds to a message is little beside a second one."""
    shape = ["--tokens", 256, "--heads", 4, "--head-dim", 64, "--mask", "full", "--layout", "contiguous"]
    command = [BIN / "armillary", "bench", "overlap", "--world", count, "--strategy", strategy, *shape]

    def measure():
        with emulated.Hosts(count, "50mbit", burst=12_500) as hosts:
            result = hosts.mpirun(count, [*command, "--seconds", 0, "--least", 3, "--json"])
        assert result.returncode == 0, result.stderr
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert len(rows) == 2
        # One at a time would take twice as long.
        shares = [row["messages_seconds"] / (max(row["sent_bytes"]) / (50e6 / 8)) for row in rows]
        assert min(shares) > 0.9, "faster than the link"
        return max(shares) < 1.7, shares

    passes_once_of(5, measure)


def test_calibrate_finds_how_tcp_sends(tmp_path):
    burst, link = 100_000, 0.05  # bytes, and GB/s: 400mbit
    path = tmp_path / "cluster.toml"
    shape = ["--world", 2, "--ranks-per-node", 1, "--heads", 1, "--head-dim", 32, "--dtype", "fp32"]

    def measure():
        with emulated.Hosts(2, "400mbit", burst=burst) as hosts:
            result = hosts.mpirun(2, [BIN / "armillary", "calibrate", *shape, "--tokens", 128, "--out", path])
        assert result.returncode == 0, result.stderr
        cluster = path.read_text(encoding="utf-8")
        assert "in_order = true" in cluster, "one connection for two ranks"
        rate, part = (
            float(re.search(rf"^{key} = (.*)$", cluster, re.MULTILINE)[1]) for key in ("GBps", "burst_bytes")
        )
        assert rate < link, "faster than the link"
        # Part of what the bucket lets pass goes to the barrier before the message, and to headers; and
        # machines that send slowly gain less by it.
        return rate > 0.8 * link and 0.25 * burst < part < 1.2 * burst, (rate, part)

    passes_once_of(4, measure)


def ranks_of(folder):
    """Pids of the processes that train in this folder, on all hosts."""
    names = []
    for process in pathlib.Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if words.startswith(str(BIN / "armillary-torch").encode()) and str(folder).encode() in words:
            names.append(process.name)
    return names


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_a_link_that_goes_down_ends_all_ranks(tmp_path):
    deadline_s = 3
    metrics = tmp_path / "run" / "metrics.jsonl"
    with emulated.Hosts(2) as hosts:
        command = recipe(tmp_path, 2, 100000, f"comm.train_timeout_seconds={deadline_s}")
        with (
            open(tmp_path / "err", "w", encoding="utf-8") as err,
            subprocess.Popen(hosts.mpirun_command(2, command), stdout=err, stderr=err) as running,
        ):
            try:
                assert wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 3, 120)
                assert len(ranks_of(tmp_path)) == 2
                hosts.link(1, "down")
                began = time.monotonic()
                assert wait_for(lambda: not ranks_of(tmp_path), 60)
                seconds = time.monotonic() - began
            finally:
                running.kill()  # mpirun tells its other daemon of the end, and waits for the answer
    assert f"not done after {deadline_s}" in (tmp_path / "err").read_text(encoding="utf-8")
    assert seconds < deadline_s + 15, "a second, and slow machines"


def daemons_of(hosts):
    """Pids of the processes in the namespaces of the hosts: mpirun, its daemons, and ranks."""
    listed = [
        subprocess.run(
            ["ip", "netns", "pids", hosts.name(host)], capture_output=True, text=True, check=True
        ).stdout.split()
        for host in range(hosts.count)
    ]
    return sum(listed, [])


def test_mpirun_ends_all_if_it_looks_for_dead_links_more_often_than_the_deadline(tmp_path):
    keepalive = [("oob_tcp_keepalive_" + name, value) for name, value in zip(*KEEPALIVE, strict=True)]
    metrics = tmp_path / "run" / "metrics.jsonl"
    with emulated.Hosts(2) as hosts:
        command = recipe(tmp_path, 2, 100000, "comm.train_timeout_seconds=120")
        with (
            open(tmp_path / "err", "w", encoding="utf-8") as err,
            subprocess.Popen(hosts.mpirun_command(2, command, keepalive), stdout=err, stderr=err) as running,
        ):
            try:
                assert wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 3, 120)
                hosts.link(1, "down")
                began = time.monotonic()
                assert wait_for(lambda: running.poll() is not None, 60), "mpirun does not end"
                assert wait_for(lambda: not daemons_of(hosts), 30), "a daemon or a rank is left"
                seconds = time.monotonic() - began
            finally:
                running.kill()
    assert running.returncode != 0
    print(f"{seconds:.1f} s")
    assert seconds < 40, "5 s, and slow machines: not the deadline of the ranks"


def test_nothing_is_left():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"ar{os.getpid()}" not in listed
