"""PEFT and torch.compile around a model whose attention is spread over ranks."""

import importlib.util
import logging

import pytest

if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("peft") is None:
    pytest.skip("transformers or peft is not installed", allow_module_level=True)

import hf_models
import peft
import torch
import transformers

import armillary
from armillary import hf

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
KINDS = {
    "LORA": peft.LoraConfig(**LORA),
    "IA3": peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
}


@pytest.fixture
def sp():
    return armillary.SequenceParallel(strategy="ring")


def results(model, inputs):
    loss = model(**inputs).loss
    loss.backward()
    return [loss.detach(), *(one.grad for one in model.parameters() if one.grad is not None)]


def adapted(kind, installed=None):
    """A model with an adapter, the same each time; attention is installed before the adapter, if it is."""
    model = hf_models.build("llama")
    if installed is not None:
        hf.install(model, installed, check=False)
    torch.manual_seed(5)
    return peft.get_peft_model(model, KINDS[kind]).eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["adapter", "install"])
def test_adapters_have_the_gradients_of_one_device(sp, kind, first):
    batch = hf_models.batch(False)
    expected = results(adapted(kind), batch)
    model = adapted(kind, sp if first == "install" else None)
    if first == "adapter":
        assert hf.install(model, sp, check=batch).report.ok
    actual = results(model, hf.shard(sp, **batch))
    assert len(actual) == len(expected) > 2
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * float(b.abs().max()))


def test_other_adapters_and_heads_are_refused(sp):
    config = peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    prompted = peft.get_peft_model(hf_models.build("llama"), config)
    with pytest.raises(armillary.InvalidArgument, match="adapter default is of kind PROMPT_TUNING; .* LORA"):
        hf.install(prompted, sp)
    model = transformers.LlamaForSequenceClassification(hf_models.CONFIGS["llama"]())
    headed = peft.get_peft_model(model, peft.LoraConfig(**LORA, task_type="SEQ_CLS"))
    with pytest.raises(armillary.InvalidArgument, match="LlamaForSequenceClassification is not the causal"):
        hf.install(headed, sp)


@pytest.fixture
def logged():
    """Warnings that torch.compile logs."""
    listener = logging.Handler(logging.WARNING)
    records = []
    listener.emit = records.append
    loggers = [logging.getLogger("torch"), logging.getLogger("torch._dynamo")]
    for one in loggers:
        one.addHandler(listener)
    yield records
    for one in loggers:
        one.removeHandler(listener)


def test_compiled_models_are_right_without_warnings(sp, logged):
    batch, graphs = hf_models.batch(True), []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    model = hf_models.build("llama")
    with hf.install(model, sp):
        expected = results(model, hf.shard(sp, **batch))
        model.zero_grad()
        actual = results(torch.compile(model, backend=backend), hf.shard(sp, **batch))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * float(b.abs().max()))
    assert len(graphs) > 2 and not logged


def test_a_model_in_one_graph_is_refused_with_what_to_do(sp):
    torch._dynamo.reset()
    model = hf_models.build("mistral")
    with (
        hf.install(model, sp),
        pytest.raises(Exception, match=r"torch.compile\(model\) without fullgraph=True"),
    ):
        torch.compile(model, backend="eager", fullgraph=True)(**hf.shard(sp, **hf_models.batch(False)))
