"""`armillary.check` passes models that are right and fails those that are not."""

import copy
import importlib.util
import json
import os
import pathlib
import random
import re

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

import check_ranks
import hf_models
import launched
import numpy
import torch
import transformers
from armillary._recipe import _config_of, _read, main
from armillary._recipe_keys import KEYS
from armillary._report import Row

import armillary
from armillary import _check

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
    reports = json.loads(launched.forked(2, "check_ranks.py", str(path)).splitlines()[-1])
    rows = ["loss", "gradients", "attention outputs", "leak", "determinism"]
    for name in ("mistral", "bf16", "dynamic", "complex", "longrope", "phimoe"):
        assert reports[name]["ok"], reports[name]
        assert [row["name"] for row in reports[name]["rows"]] == [*rows[:2], "logits", *rows[2:]]
    assert reports["own"]["ok"] and [row["name"] for row in reports["own"]["rows"]] == rows
    assert "leak" in failed(reports["leaky"]), reports["leaky"]
    assert "attention outputs" in failed(reports["scaled"]), reports["scaled"]
    assert "equal to one device" in path.read_text() and "2 ranks" in path.read_text()


def test_recipe_over_ranks(tmp_path):
    recipe, report = tmp_path / "recipe.toml", tmp_path / "report.json"
    recipe.write_text(RECIPE)
    command = ["-m", "armillary", "check", str(recipe), "--report", str(report)]
    assert "equal to one device" in launched.forked(2, *command)
    assert json.loads(report.read_text())["ok"]


@pytest.mark.parametrize(
    ("recipe", "match"),
    [
        ("[model]\nname = 'mamba'", "model.name is 'mamba'; gpt, gpt2, llama or model.hf_folder is"),
        ("model = 5", "check: model is no section; [model] with keys is required"),
        ("[paralelism]", "section 'paralelism' is not known; job, model, training, "),
        ("[paralelism]", "nearest: parallelism"),
        ("[model]\nn_layer = 2", "key of [model] 'n_layer' is not known; name, dim, n_layers, "),
        (f"{'k' * 100000} = 1", "(99745 characters left out) .."),
        ("[model]\ndim = 'x'", "check: model.dim is 'x'; a whole number of at least 1 is required"),
        ("[model]\nn_layers = 0", "check: model.n_layers is 0; a whole number of at least 1 is required"),
        ("[model]\nnorm_eps = 0", "check: model.norm_eps is 0; a number above 0 is required"),
        ("[model]\ndim = 30", "model.dim 30, n_heads 4, n_kv_heads 4; n_heads that divide dim, and "),
        ("[model]\nn_kv_heads = 2", "the GPT of transformers has as many as n_heads, 4; those, or "),
        ("[model]\nhf_folder = 'none'", "check: model.hf_folder 'none' is no folder; one is required"),
        ("[training]\nseq_len = 'a'", "check: training.seq_len is 'a'; a whole number of at least 1"),
        ("[parallelism]\nmask = 5", "check: parallelism.mask is 5; a text is required"),
        ("[model", "recipe.toml: no TOML at end of document; a recipe in TOML is required"),
        ("a = 1\na = 2\n", "recipe.toml: no TOML at line 2, column 6; a recipe in TOML is required"),
    ],
)
def test_recipes_are_refused_by_name(tmp_path, capsys, recipe, match):
    path = tmp_path / "recipe.toml"
    path.write_text(recipe)
    assert main(["check", str(path)]) == 2
    text = capsys.readouterr().err
    assert match in text and len(text) < 1000


def test_keys_of_recipes_are_those_of_the_program():
    folders = [pathlib.Path(__file__).parents[2] / "armillary" / name for name in ("model", "train")]
    sources = [one for folder in folders for one in folder.rglob("*.cpp")]
    expected = {key for one in sources for key in re.findall(r'\{"(\w+)",\s*&\w+\.\w+', one.read_text())}
    assert {key for keys in KEYS.values() for key in keys.split()} == expected | {"hf_folder"}


def test_the_shape_of_a_recipe_is_that_of_the_program():
    keys = {"name": "llama", "dim": 64, "n_heads": 8, "n_kv_heads": 0, "norm_eps": 1e-3}
    config = _config_of(keys | {"hidden_dim": 48, "enable_weight_tying": True}, 16)
    assert (config.num_key_value_heads, config.intermediate_size) == (8, 48)
    assert config.rms_norm_eps == 1e-3 and config.tie_word_embeddings
    config = _config_of({"name": "gpt2", "vocab_size": 301, "norm_eps": 1e-3, "hidden_dim": 48}, 16)
    assert (config.vocab_size, config.n_inner, config.n_positions) == (301, 48, 16)
    assert config.layer_norm_epsilon == 1e-3 and config.tie_word_embeddings
    # As llama_test.cpp has them.
    for dim, multiple, factor, width in ((4096, 256, 1.0, 11008), (4096, 1024, 1.3, 14336)):
        shape = {"dim": dim, "n_heads": 32, "multiple_of": multiple, "ffn_dim_multiplier": factor}
        assert _config_of({"name": "llama"} | shape, 16).intermediate_size == width


@pytest.mark.parametrize("recipe", ["default", "gpt2", "llama", "papers/gpt_3b", "papers/llama3_8b"])
def test_recipes_of_the_project_are_read(recipe):
    _read(str(pathlib.Path(__file__).parents[2] / f"recipes/{recipe}.toml"))


def test_inputs_that_are_no_files_are_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for name, match in (
        ("none", "none: No such file or directory"),
        ("pipe", "pipe is no file"),
        ("", "s a directory"),
    ):
        assert main(["check", str(tmp_path / name)]) == 2
        assert match in capsys.readouterr().err


def test_a_report_is_no_pipe(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(armillary.InvalidArgument, match="cannot write .*(Not a directory|File exists)"):
        armillary.Report("title", (Row("loss", 0.0, 0.0, ""),), 2).save(tmp_path / "pipe" / "report")
    monkeypatch.setattr(_check, "_result", None)  # nothing is computed before the refusal
    with pytest.raises(armillary.InvalidArgument, match="pipe is a pipe"):
        batch, sp = hf_models.batch(False), armillary.SequenceParallel()
        armillary.check(hf_models.build("llama"), batch, sp, report=tmp_path / "pipe")
    with pytest.raises(armillary.InvalidArgument, match="pipe is a pipe; a file for the report is required"):
        armillary.Report("title", (), 2).save(tmp_path / "pipe")


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


def state_of(model):
    """All that training reads: numbers and buffers of modules, gradients, random states."""
    numbers = [
        {name: one for name, one in vars(module).items() if isinstance(one, bool | int | float)}
        for module in model.modules()
    ]
    buffers = [one.tolist() for module in model.modules() for one in module.buffers(recurse=False)]
    gradients = [None if one.grad is None else one.grad.tolist() for one in model.parameters()]
    states = [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    return numbers, buffers, gradients, states


def drawing(layer):
    """A layer that draws numbers of all kinds, as noise of routers does."""

    def draw(*_):
        torch.rand(1), random.random(), numpy.random.rand()

    layer.register_forward_pre_hook(draw)


@pytest.mark.parametrize("rope", check_ranks.LONGER)
def test_a_check_changes_nothing_that_training_reads(rope):
    model = check_ranks.longer(*check_ranks.LONGER[rope]).train()
    drawing(model.model.layers[0])
    parameter = next(model.parameters())
    parameter.grad = torch.ones_like(parameter)
    before, attention = copy.deepcopy(state_of(model)), model.config._attn_implementation
    assert armillary.check(model, hf_models.batch(False), armillary.SequenceParallel())
    for name, one, then in zip(
        ("numbers", "buffers", "gradients", "states"), state_of(model), before, strict=True
    ):
        assert one == then, name
    assert model.config._attn_implementation == attention


def test_other_batches_are_refused():
    model, sp = hf_models.build("llama"), armillary.SequenceParallel()
    with pytest.raises(armillary.InvalidArgument, match="input_ids and labels are required"):
        armillary.check(model, {"input_ids": torch.zeros(1, 4, dtype=torch.int64)}, sp)
    batch = hf_models.batch(False) | {"token_type_ids": torch.ones(2, 48)}
    with pytest.raises(armillary.InvalidArgument, match="the batch has token_type_ids"):
        armillary.check(model, batch, sp)
    with pytest.raises(armillary.InvalidArgument, match="run=, which calls it, is required"):
        armillary.check(torch.nn.Linear(2, 2), hf_models.batch(False), sp)
