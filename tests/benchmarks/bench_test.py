"""Every benchmark runs in its smallest size and says what it promises; contenders that fail are said to."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from bench import contest, strategies

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def run(name, *flags, env=None):
    return subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *map(str, flags)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | (env or {}),
    )


def rows(name, *flags, env=None):
    done = run(name, "--json", "--seconds", 0, *flags, env=env)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(autouse=True)
def _program():
    if not contest.PROGRAM.is_file():
        pytest.skip("[SKIP] build/bin/armillary is not built: ./dev build")


def test_kernel():
    shape = ["--tokens", 128, "--heads", 1, "--head-dim", 64, "--dtype", "fp32", "--threads", 1]
    uncompiled = {"TORCHDYNAMO_DISABLE": "1"}  # flex_attention by its rules; compiling takes a minute
    (row,) = rows("kernel", "--quick", "--cells", "dense", "--pass", "forward", *shape, env=uncompiled)
    assert row["gflops"] > 0
    assert row["of_peak"] == row["gflops"] / row["peak_gflops"]
    assert row["over_sdpa"] == row["gflops"] / row["sdpa_gflops"]
    assert row["over_flex"] == row["gflops"] / row["flex_gflops"]
    assert max(row["max_error"], row["sdpa_max_error"], row["flex_max_error"]) < 1e-5


def test_merge():
    found = rows("merge", "--quick", "--tokens", 64, "--threads", 1)
    assert [row["what"] for row in found] == ["merge", "add"]


def test_layer():
    found = rows("layer", "--quick", "--tokens", 16, "--heads", 2)
    assert [(row["world"], row["pass"]) for row in found] == [
        (world, direction) for world in (1, 2) for direction in ("forward", "forward+backward")
    ]
    assert all(("left_out_rounds" in row) == (row["world"] == 2) for row in found)


def test_strategies():
    found = rows("strategies", "--quick", "--tokens", 16, "--heads", 2, "--head-dim", 16)
    ours = {row["who"] for row in found if row["ours"]}
    others = {row["who"] for row in found if not row["ours"]}
    assert ours == set(strategies.STRATEGIES)
    assert {"plain zigzag ring", "plain Ulysses", "PyTorch context parallel, ring"} <= others
    for row in found:
        assert row["who"].startswith("yunchang") or row["max_error"] < 1e-5, row
        assert "seconds" in row or row["reasons"]["seconds"], row
        assert not row["ours"] or row["over_best_other"] > 0, row
        assert row["left_out_rounds"] == len(row["left_out_cores"]), row


def test_train():
    found = rows("train", "--quick", "--tokens", 64, "--dim", 64, "--layers", 1, "--dtype", "fp32")
    assert {row["who"] for row in found} >= {"ours, 2 ranks", "PyTorch, 2 threads"}
    assert {row["model"] for row in found} == {"gpt", "llama"}
    for model in ("gpt", "llama"):
        first = [
            row["first_grad_norm"] for row in found if row["model"] == model and "first_grad_norm" in row
        ]
        assert max(first) - min(first) < 1e-3 * min(first)
    assert all(row["left_out_rounds"] == len(row["left_out_cores"]) for row in found)


def test_verify():
    if not (ROOT / "build" / "bin" / "verify_bench").is_file():
        pytest.skip("[SKIP] build/bin/verify_bench is not built: Google Benchmark is required for it")
    found = rows("verify", "--quick", "--world", 8)
    assert {(row["what"], row["pass"]) for row in found} == {
        (what, direction) for what in ("plan", "verify") for direction in ("forward", "backward")
    }
    assert all(row["ms"] > 0 for row in found)
    assert all(row["left_out_rounds"] == len(row["left_out_cores"]) for row in found)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["merge", "--tokens", "0"], "'0' given; a whole number of at least 1 is required"),
        (["strategies", "--heads", "-2"], "'-2' given; a whole number of at least 1 is required"),
        (["kernel", "--threads", "many"], "'many' given; a whole number of at least 1 is required"),
        (["verify", "--world", "9"], "invalid choice"),
    ],
)
def test_sizes_that_cannot_be(flags, message):
    done = run(*flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_what_our_program_refuses_is_refused():
    done = run("layer", "--quick", "--tokens", 16, "--heads", 100000000000)
    assert done.returncode == 2
    assert done.stderr.startswith("bench: --heads: '100000000000' given")


def test_a_benchmark_that_there_is_not():
    done = subprocess.run(["./dev", "bench", "kernl"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "bench: 'kernl'; kernel merge layer" in done.stderr
    assert "nearest: kernel" in done.stderr


def peer_script(tmp_path, text):
    path = tmp_path / "peer.py"
    path.write_text(text, encoding="utf-8")
    return [sys.executable, str(path)]


def test_a_peer_that_is_not_installed(tmp_path):
    with pytest.raises(contest.RefusedError, match="not installed: 'no_such_module'"):
        contest.Contender(peer_script(tmp_path, "import no_such_module"))


def test_a_library_that_is_not_installed(tmp_path, monkeypatch):
    absent = "raise ModuleNotFoundError('No module named yunchang', name='yunchang')\n"
    (tmp_path / "yunchang.py").write_text(absent, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    shape = ["--tokens", 16, "--heads", 2, "--head-dim", 16]
    with contest.Contender(contest.peer("gloo_attention", *shape), timeout_s=120) as gloo:
        with pytest.raises(contest.RefusedError, match="not installed: yunchang"):
            gloo.run("yunchang ring forward")
        assert gloo.run("plain zigzag ring error") < 1e-5  # and the others go on


def test_a_peer_that_hangs_is_ended(tmp_path):
    script = "import subprocess, time\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)"
    with pytest.raises(contest.RefusedError, match="no answer within 1 s"):
        contest.Contender(peer_script(tmp_path, script), timeout_s=1)


def test_a_side_that_fails_has_a_reason_and_the_others_go_on():
    def refuse():
        raise contest.RefusedError("not today")

    values = iter([3.0, 1.0, 2.0])
    medians, reasons, counts = contest.take_turns({"a": lambda: next(values), "b": refuse}, 0)
    assert (medians, reasons, counts) == ({"a": 2.0}, {"b": "not today"}, {"rounds": 3})


@pytest.mark.parametrize(
    ("cores", "median", "counts", "text"),
    [
        (
            [1.99, 1.79, 1.8],
            4.0,
            {"rounds": 2, "left_out_rounds": 1, "left_out_cores": [1.79], "all_left_out": False},
            "1 of 3 (cores 1.79 to 1.79)",
        ),
        (
            [2.0, 1.9, 2.01],
            5.0,
            {"rounds": 3, "left_out_rounds": 0, "left_out_cores": [], "all_left_out": False},
            "0",
        ),
        (
            [1.0, 1.5, 1.2],
            5.0,
            {"rounds": 3, "left_out_rounds": 3, "left_out_cores": [1.0, 1.5, 1.2], "all_left_out": True},
            "ALL 3 (cores 1.00 to 1.50): medians of all",
        ),
    ],
)
def test_rounds_without_a_second_core_are_left_out(cores, median, counts, text):
    found, values = iter(cores), iter([7.0, 5.0, 1.0])
    runs = {"cores": lambda: next(found), "side": lambda: next(values)}
    medians, _, said = contest.take_turns(runs, 0)
    assert medians["side"] == median
    assert said == counts
    assert contest.left_out(said) == text


def test_one_thread_has_no_rounds_to_leave_out():
    assert contest.left_out({"rounds": 3}) == "-"
