"""The models of transformers that `hf.install` takes: a closed world.

A model is taken if its family is in `FAMILIES`, its class is the causal language model of that family (or
what is below its head), and its configuration asks for nothing that attention over ranks cannot do."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from armillary.errors import InvalidArgument

_TESTED = """
    afmoe apertus apertus1p5_text arcee aria_text axk1 beam bert bert-generation bitnet codegen cohere
    cohere2 cohere2_moe cohere_compass_text ctrl cwm dbrx deepseek_v2 deepseek_v3 diffllama dory dots1
    electra ernie ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo flint gemma gemma2
    gemma3_text gemma3n_text gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite gpt-sw3
    gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granite_swa granitemoe granitemoe_swa
    granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3
    iquestcoder jais2 jetmoe kolibri1 laguna llama longcat_flash mellum mimo_v2_flash minicpm3
    minimax_m2 ministral ministral3 mistral mixtral modernbert-decoder moshi nanochat nemotron olmo
    olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe roc_bert sarvam_mla
    sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu
"""
#: `config.model_type` of the models whose loss and gradients the tests compare with those of one device.
FAMILIES = frozenset(_TESTED.split())
#: Those in which position_ids that begin again do not keep packed documents apart, on one device.
POSITIONS_UNREAD = frozenset(
    {"afmoe", "bert", "bert-generation", "electra", "ernie", "gpt_oss", "opt", "roc_bert"}
)
_STATE = "layers that carry a state from token to token, such as recurrent ones and convolutions"
_CHOSEN = "layers that choose or compress keys by what the tokens are"
_CHUNKS = "attention in chunks"
_OWN = "attention code of its own, which does not go through the AttentionInterface of transformers"
_COUNTED = "positions that it counts from its own tokens, whatever position_ids are"
_MIXED = "inputs that are not all tokens: images, sound, bytes, or the states of another model"
_OF_REASONS = {
    _STATE: """bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid inkling2_loop_text inkling2_text
        inkling_text jamba kimi_linear lara_mini lfm2 lfm2_moe lfm3 mamba mamba2 minimax nemotron_h
        olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text
        recurrent_gemma rwkv xlstm zamba zamba2 zaya""",
    _CHOSEN: """axk2 deepseek_v32 deepseek_v4 doge dots3_note dots3_note_text glm_moe_dsa hy_v4
        minimax_m3_vl_text reformer""",
    _CHUNKS: "llama4 llama4_text",
    _OWN: """big_bird bigbird_pegasus bloom cpmant falcon gpt_neo gpt_neox_japanese megatron-bert mpt mvp
        openai-gpt prophetnet rembert roformer trocr xglm xlm xlnet""",
    _COUNTED: """bart biogpt blenderbot blenderbot-small camembert data2vec-text marian mbart pegasus plbart
        roberta roberta-prelayernorm whisper xlm-roberta xlm-roberta-xl xmod""",
    _MIXED: """blt emu3 emu3_text_model fuyu gemma3 gemma3n gemma4 gemma4_assistant gemma4_unified
        gemma4_unified_assistant git got_ocr2 mllama mllama_text_model moss_transcribe_diarize musicgen
        musicgen_decoder musicgen_melody musicgen_melody_decoder phi4_multimodal""",
}
#: What the other families of causal language models have that is not honoured, by `config.model_type`.
REFUSED = {family: reason for reason, families in _OF_REASONS.items() for family in families.split()}
_LAYERS = frozenset({"full_attention", "sliding_attention"})
# Frequencies that are computed once, and those of `_hf_rope`, which depend on the largest position.
_ROPES = frozenset({"default", "linear", "llama3", "proportional", "yarn", "dynamic", "longrope"})


def check_family(model: PreTrainedModel, *, untested: bool) -> None:
    """Raises `InvalidArgument`, with the reason, for a model that is not known to be right."""
    _check_class(model, untested)
    for config in configs_of(model):
        _check_config(config)


def configs_of(model: PreTrainedModel) -> list[Any]:
    configs = {id(one.config): one.config for one in model.modules() if isinstance(one, PreTrainedModel)}
    return list(configs.values())


def _check_class(model: PreTrainedModel, untested: bool) -> None:
    family, name = model.config.model_type, type(model).__name__
    if family in REFUSED:
        raise InvalidArgument(
            f"install: {name} of family {family} has {REFUSED[family]}; one of the families of "
            "docs/hf_families.md is required"
        )
    if family not in FAMILIES and not untested:
        raise InvalidArgument(
            f"install: model type {family} is not one of the tested ones of docs/hf_families.md; one of "
            "them, or untested=True after armillary.check, is required"
        )
    allowed = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family), MODEL_MAPPING_NAMES.get(family)]
    if allowed[0] is None and name.endswith(("ForCausalLM", "LMHeadModel")):
        return
    if not any(_is(type(model), one) for one in allowed):
        raise InvalidArgument(
            f"install: {name} is not the causal language model of {family}, and its head or loss may need "
            f"tokens of other ranks; {allowed[0] or 'a ..ForCausalLM'}, with a loss of your own over "
            "sp.unshard(..), is required"
        )


def _is(kind: type, name: str | None) -> bool:
    """Whether a class computes what the class of that name in transformers does: its forward is the same."""
    for one in kind.__mro__:
        if one.__name__ == name and one.__module__.startswith("transformers.models."):
            of_given, forward = inspect.unwrap(kind.forward), inspect.unwrap(one.forward)  # type: ignore[attr-defined]
            return of_given is forward and forward.__module__.startswith("transformers.")
    return False


def _check_config(config: Any) -> None:
    kind = config.model_type
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYERS)
    if others:
        raise InvalidArgument(
            f"install: {kind} has layers of type {others[0]}; {' and '.join(sorted(_LAYERS))} are required"
        )
    unknown = sorted(rope_types(config) - _ROPES)
    if unknown:
        raise InvalidArgument(
            f"install: {kind} has rotary positions of type {unknown[0]}; one of {', '.join(sorted(_ROPES))} "
            "is required"
        )
    if getattr(config, "output_router_logits", False):
        raise InvalidArgument(
            "install: config.output_router_logits is set; the balance loss of a shard is not that of the "
            "sequence: False is required"
        )


def rope_types(config: Any) -> set[str]:
    """The kinds of rotary positions of all layers; empty for a model without."""
    parameters = getattr(config, "rope_parameters", None) or {}
    groups = [parameters, *(one for one in parameters.values() if isinstance(one, dict))]
    return {str(one["rope_type"]) for one in groups if one.get("rope_type") is not None}
