"""All families of causal language models of transformers: right on 2 ranks, or refused with a reason."""

import importlib.util
import inspect
import json
import re
from pathlib import Path

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

import hf_models
import hf_page
import launched
import torch
import transformers
from armillary._hf_families import POSITIONS_UNREAD
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import armillary
from armillary import hf

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hf_families.md"

NO_AUTOCAST = {"dbrx"}  # on one device: its experts add a bf16 tensor to one of fp32


def test_right_families_equal_one_device():
    answers = json.loads(launched.forked(2, "hf_families_ranks.py").splitlines()[-1])
    assert answers.keys() == hf.FAMILIES
    for family, answer in answers.items():
        assert answer["loss"] <= 1e-5 and answer["gradient"] <= 1e-5, f"{family}: {answer}"
        assert answer["reads positions"] == (family not in POSITIONS_UNREAD), family
        narrow = answer["autocast"]
        if "unable" in narrow:
            assert family in NO_AUTOCAST, f"{family}: {narrow}"
            continue
        # One device may round the loss, a single number, to nearly the exact one by chance.
        assert narrow["ours loss"] <= 2.5 * max(narrow["eager loss"], 2**-9), f"{family}: {narrow}"
        assert narrow["ours"] <= 2.5 * narrow["eager"], f"{family}: {narrow}"


def test_every_family_is_right_or_refused():
    assert not hf.FAMILIES & hf.REFUSED.keys()
    assert not MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - hf.FAMILIES - hf.REFUSED.keys()
    assert not hf.FAMILIES - MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()


def test_the_page_has_all_families():
    assert PAGE.read_text() == hf_page.page() + "\n"


@pytest.fixture
def sp():
    return armillary.SequenceParallel(strategy="ring")


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("mamba", "layers that carry a state"),
        ("deepseek_v32", "layers that choose or compress keys"),
        ("llama4_text", "attention in chunks"),
        ("falcon", "attention code of its own"),
        ("whisper", "positions that it counts from its own tokens"),
        ("blt", "inputs that are not all tokens"),
    ],
)
def test_other_families_are_refused_with_their_reason(sp, family, reason):
    model = hf_models.build("llama")
    model.config.model_type = family
    for untested in (False, True):
        with pytest.raises(armillary.InvalidArgument, match=f"family {family} has {reason}"):
            hf.install(model, sp, untested=untested)


#: Inputs beside tokens, and what they are: images, sound, or the states of another model.
MIXED = re.compile("pixel|image|video|input_features|audio|cross_attention_states|encoder_hidden|shared_kv")


def wrappers():
    """The classes of families that are refused for inputs that are not all tokens."""
    for family in sorted(hf.REFUSED):
        name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family)
        if name is not None and hf.REFUSED[family].startswith("inputs that are not all tokens"):
            yield family, getattr(transformers, name)


@pytest.mark.parametrize(("family", "kind"), list(wrappers()))
def test_wrappers_of_other_inputs_have_them_and_are_refused(sp, family, kind):
    """Built without memory, with what its own configuration is by default."""
    names = [name for name in inspect.signature(kind.forward).parameters if MIXED.search(name)]
    # Emu3 has images among its tokens, from a codebook.
    assert names or "vq_config" in CONFIG_MAPPING[family].sub_configs
    if family in ("gemma3n", "gemma4_assistant"):  # need a package for images, and sizes of their own
        model = hf_models.build("llama")
        model.config.model_type = family
    else:
        with torch.device("meta"):
            model = kind(kind.config_class())
    with pytest.raises(armillary.InvalidArgument, match=r"has inputs that are not all tokens: images"):
        hf.install(model, sp, untested=True)


def test_a_later_family_is_refused(sp):
    model = hf_models.build("llama")
    model.config.model_type = "llama9"
    with pytest.raises(armillary.InvalidArgument, match="model type llama9 is not one of the tested ones"):
        hf.install(model, sp)


def other_classes():
    """Heads and losses that need tokens of other ranks."""
    config = hf_models.CONFIGS["llama"]()
    gpt2 = hf_models.CONFIGS["gpt2"]()
    yield transformers.LlamaForSequenceClassification(config)
    yield transformers.LlamaForTokenClassification(config)
    yield transformers.LlamaForQuestionAnswering(config)
    yield transformers.GPT2DoubleHeadsModel(gpt2)
    yield transformers.GPT2ForSequenceClassification(gpt2)

    class Pooled(transformers.LlamaForCausalLM):
        def forward(self, **inputs):
            return super().forward(**inputs).logits[:, -1]

    yield Pooled(config)


def test_other_classes_are_refused_by_name(sp):
    for model in other_classes():
        name = type(model).__name__
        for untested in (False, True):
            with pytest.raises(armillary.InvalidArgument, match=f"{name} is not the causal language model"):
                hf.install(model, sp, untested=untested)
