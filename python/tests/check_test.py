"""`armillary.check` passes models that are right and fails those that are not."""

import importlib.util
import json
import os

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

import hf_models
import launched
import torch
import transformers
from armillary._recipe import main

import armillary

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
RECIPE = """
[model]
name = "llama"
dim = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
multiple_of = 16

[training]
seq_len = 64

[parallelism]
strategy = "ring"
layout = "zigzag"
mask = "documents"
"""


def failed(report):
    return [row["name"] for row in report["rows"] if not row["ok"]]


def test_over_ranks(tmp_path):
    path = tmp_path / "report.txt"
    found = json.loads(launched.torchrun(2, "check_ranks.py", str(path)).splitlines()[-1])
    rows = ["loss", "gradients", "attention outputs", "leak", "determinism"]
    for name in ("mistral", "bf16", "dynamic", "complex", "longrope", "phimoe"):
        assert found[name]["ok"], found[name]
        assert [row["name"] for row in found[name]["rows"]] == [*rows[:2], "logits", *rows[2:]]
    assert found["own"]["ok"] and [row["name"] for row in found["own"]["rows"]] == rows
    assert "leak" in failed(found["leaky"]), found["leaky"]
    assert "attention outputs" in failed(found["scaled"]), found["scaled"]
    assert "equal to one device" in path.read_text() and "2 ranks" in path.read_text()


def test_recipe_over_ranks(tmp_path):
    recipe, report = tmp_path / "recipe.toml", tmp_path / "report.json"
    recipe.write_text(RECIPE)
    command = ["-m", "armillary", "check", str(recipe), "--report", str(report)]
    assert "equal to one device" in launched.torchrun(2, *command)
    assert json.loads(report.read_text())["ok"]


@pytest.mark.parametrize(
    ("recipe", "match"),
    [
        ("[model]\nname = 'mamba'", "model.name is 'mamba'; gpt, llama or model.hf_folder is required"),
        ("[model", "recipe.toml: no TOML at end of document; a recipe in TOML is required"),
        ("a = 1\na = 2\n", "recipe.toml: no TOML at line 2, column 6; a recipe in TOML is required"),
    ],
)
def test_recipes_are_refused_by_name(tmp_path, capsys, recipe, match):
    path = tmp_path / "recipe.toml"
    path.write_text(recipe)
    assert main(["check", str(path)]) == 2
    assert match in capsys.readouterr().err


def test_inputs_that_are_no_files_are_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for name, match in (
        ("none", "none: No such file or directory"),
        ("pipe", "pipe is no file"),
        ("", "s a directory"),
    ):
        assert main(["check", str(tmp_path / name)]) == 2
        assert match in capsys.readouterr().err


def test_one_rank_spreads_nothing_and_says_so(tmp_path, capsys):
    report = armillary.check(hf_models.build("gpt_oss"), hf_models.batch(True), armillary.SequenceParallel())
    assert report, str(report)
    assert "leak" in str(report) and "determinism" in str(report)
    assert "equal to one device" not in str(report)
    assert str(report).endswith("torchrun --nproc-per-node 2 or more is required")
    assert "1 rank," in report.title
    assert json.loads(report.to_json())["world"] == 1
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    assert main(["check", str(recipe), "--report", str(tmp_path / "new" / "report.txt")]) == 2
    assert "ok on one rank, where nothing is spread" in capsys.readouterr().out
    assert "nothing is spread" in (tmp_path / "new" / "report.txt").read_text()


def test_gradients_that_are_zero_but_for_rounding():
    torch.manual_seed(0)
    config = transformers.OPTConfig(**SMALL, word_embed_proj_dim=32, ffn_dim=48)
    model = transformers.OPTForCausalLM(config).eval()
    report = armillary.check(model, hf_models.batch(False), armillary.SequenceParallel())
    assert report, str(report)


def test_gradients_and_mode_are_given_back():
    model = hf_models.build("llama").train()
    parameter = next(model.parameters())
    parameter.grad = torch.ones_like(parameter)
    assert armillary.check(model, hf_models.batch(False), armillary.SequenceParallel())
    assert model.training and bool((parameter.grad == 1).all())
    assert model.config._attn_implementation == "eager"


def test_other_batches_are_refused():
    model, sp = hf_models.build("llama"), armillary.SequenceParallel()
    with pytest.raises(armillary.InvalidArgument, match="input_ids and labels are required"):
        armillary.check(model, {"input_ids": torch.zeros(1, 4, dtype=torch.int64)}, sp)
    batch = hf_models.batch(False) | {"token_type_ids": torch.ones(2, 48)}
    with pytest.raises(armillary.InvalidArgument, match="the batch has token_type_ids"):
        armillary.check(model, batch, sp)
    with pytest.raises(armillary.InvalidArgument, match="run=, which calls it, is required"):
        armillary.check(torch.nn.Linear(2, 2), hf_models.batch(False), sp)
