"""Folders of Hugging Face in and out: our logits are those of transformers, for every family and scaling."""

import json
import shutil

import pytest
import torch
from model_programs import LOGITS, PROGRAM, assert_equal_logits, built, our_logits, output_of, run, train
from tiny_families import FAMILIES, logits_of, tiny, tokens_of

pytestmark = built
# cp, tp and strategy; KV heads are 2, or 3 in smollm2.
MESHES = [(2, 1, "ring"), (1, 2, "ring"), (2, 2, "ring"), (2, 1, "ulysses"), (4, 1, "startrail:c=2")]


@pytest.mark.parametrize(("at", "name"), list(enumerate(FAMILIES)))
def test_logits_are_those_of_transformers(tmp_path, at, name):
    tiny(name).save_pretrained(tmp_path / "model")
    tokens = tokens_of()
    required = logits_of(tmp_path / "model", tokens)
    assert_equal_logits(our_logits(tmp_path / "model", tokens, tmp_path), required)
    cp, tp, strategy = MESHES[at % len(MESHES)]
    if name == "smollm2":
        cp, tp, strategy = 2, 3, "ring"
    assert_equal_logits(our_logits(tmp_path / "model", tokens, tmp_path, cp, tp, strategy), required)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_several_files_and_floats_of_16_bits(tmp_path, dtype):
    tiny("qwen2").to(dtype).save_pretrained(tmp_path / "model", max_shard_size="40KB")
    assert (tmp_path / "model" / "model.safetensors.index.json").is_file()
    tokens = tokens_of()
    assert_equal_logits(
        our_logits(tmp_path / "model", tokens, tmp_path), logits_of(tmp_path / "model", tokens)
    )


@pytest.mark.parametrize(
    "name", ["smollm2", "dynamic", "llama3", "yarn", "longrope", "mistral", "mistral_whole"]
)
def test_what_a_run_exports_is_what_transformers_loads(tmp_path, name):
    check_export(tmp_path, name)


@pytest.mark.parametrize("name", ["qwen2", "qwen2_window", "qwen3"])
def test_qwens_are_exported(tmp_path, name):
    check_export(tmp_path, name, parallelism__context_parallel_degree=2)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "qwen3_moe_raw"])
def test_experts_are_exported(tmp_path, name):
    check_export(
        tmp_path, name, parallelism__context_parallel_degree=2, parallelism__expert_parallel_degree=2
    )


def check_export(tmp_path, name, **keys):
    source = tmp_path / "model"
    tiny(name).save_pretrained(source)
    (source / "tokenizer.json").write_text("{}")
    output_of(*train(tmp_path / "run", source, **keys))
    output_of(PROGRAM, "export", tmp_path / "run", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 1
    tokens = tokens_of()
    exported = logits_of(tmp_path / "out", tokens)
    assert_equal_logits(our_logits(tmp_path / "out", tokens, tmp_path), exported)
    # One step of a rate near 0 moves it a little.
    assert_equal_logits(exported, logits_of(source, tokens), 1e-2)
    assert not torch.equal(exported, logits_of(source, tokens))


def test_loss_and_gradient_are_those_of_transformers(tmp_path):
    """With biases, norms of heads have a test in C++; here a window and a scaling, in training."""
    from transformers import AutoModelForCausalLM

    for name in ("mistral", "qwen3", "qwen2", "yarn", "mixtral", "qwen3_moe"):
        source = tmp_path / name
        tiny(name).save_pretrained(source)
        text = bytes(range(32, 126)) + b"abc"
        (tmp_path / "text.md").write_bytes(text)
        run_folder = tmp_path / f"run_{name}"
        keys = {"training__dataset_path": tmp_path / "text.md"}
        if name in ("mixtral", "qwen3_moe"):  # no part of the loss, but of the gradient
            keys["model__router_aux_loss_coef"] = 0
        output_of(*train(run_folder, source, **keys))
        first = json.loads((run_folder / "metrics.jsonl").read_text().splitlines()[0])
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
        tokens = torch.tensor(list(text))
        logits = model(tokens[None, :-1]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits.double(), tokens[1:])
        loss.backward()
        norm = torch.stack([p.grad.double().norm() for p in model.parameters()]).norm()
        assert abs(loss.item() - first["loss"]) < 1e-5 * first["loss"], name
        assert abs(norm.item() - first["grad_norm"]) < 1e-4 * first["grad_norm"], name


def test_what_is_not_obeyed_is_refused_by_name(tmp_path):
    source = tmp_path / "model"
    tiny("llama").save_pretrained(source)
    whole = json.loads((source / "config.json").read_text())
    for change, text in (
        ({"quantization_config": {"bits": 4}}, 'quantization_config = {"bits":4}, which is not obeyed here'),
        ({"model_type": "gemma2"}, "llama, mistral, qwen2, qwen3, mixtral or qwen3_moe is required"),
        ({"attention_bias": True}, "attention_bias = true; false is required"),
        (
            {"rope_parameters": {"rope_type": "proportional"}},
            "default, linear, dynamic, llama3, yarn or longrope",
        ),
    ):
        (source / "config.json").write_text(json.dumps(whole | change))
        finished = run(*train(tmp_path / "run", source))
        assert finished.returncode == 2
        assert text in finished.stderr
        assert finished.stderr.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_another_mask_than_the_window_is_refused(tmp_path):
    source = tmp_path / "model"
    tiny("mistral").save_pretrained(source)
    finished = run(*train(tmp_path / "run", source, parallelism__mask="documents"))
    assert finished.returncode == 2
    assert "nearest: documents:within=window,left=15,right=0" in finished.stderr


def test_a_recipe_with_other_sizes_is_refused(tmp_path):
    source = tmp_path / "model"
    tiny("llama").save_pretrained(source)
    words = train(tmp_path / "run", source, model__n_layers=1)
    finished = run(*words)
    assert finished.returncode == 2
    assert "model.n_layers = 2; 1, that of the recipe, is required" in finished.stderr
    shutil.rmtree(source)
    assert run(LOGITS, source, "a", "b", 1, 1, "ring").returncode == 2
