"""Attention of a layer of transformers, in the place of its eager attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from armillary._hf_masks import DeclaredMask
from armillary._texts import count_of
from armillary.errors import InvalidArgument
from armillary.sequence_parallel import SequenceParallel

# Arguments that layers hand on, and that eager attention ignores too.
_WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
_SEED_STRIDE = 1 << 20  # seeds of one installation, one for each layer


def attend(
    sp: SequenceParallel, module: nn.Module, qkv: tuple[Tensor, Tensor, Tensor], arguments: dict[str, Any]
) -> tuple[Tensor, None]:
    """Attention [B, L, H, E] of q, k, v [B, H, L, D], with the arguments that transformers gives it.

    Raises `InvalidArgument`, with its name, for an argument that attention here cannot honour."""
    with sp._refusals():
        settings = _settings(module, (qkv[0].shape[2], qkv[1].shape[2]), arguments)
    return sp.attention(*qkv, **settings, format="BHLD").transpose(1, 2), None


def _settings(module: nn.Module, tokens: tuple[int, int], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `SequenceParallel.attention`; all are checked, none is dropped."""
    declared = arguments.pop("attention_mask")
    if not isinstance(declared, DeclaredMask):
        raise InvalidArgument(
            f"armillary.hf: {_name(module)} was given attention_mask as a {type(declared).__name__}; masks "
            "that transformers builds by name are required, and documents are declared with "
            "armillary.hf.shard"
        )
    if declared.origin is not arguments.pop("origin"):
        declared.refuse("in another installation")
    if tokens[0] != tokens[1]:
        raise InvalidArgument(
            f"armillary.hf: {_name(module)} attends from {count_of(tokens[0], 'token')} to {tokens[1]}; as "
            "many keys as queries are required: neither cross-attention nor a cache"
        )
    dropout_seed = arguments.pop("dropout_seed") * _SEED_STRIDE + int(getattr(module, "layer_idx", 0) or 0)
    settings = {
        "scale": arguments.pop("scaling", None),
        "softcap": arguments.pop("softcap", None),
        "sinks": arguments.pop("s_aux", None),
        "dropout": arguments.pop("dropout", None) or 0.0,
        "dropout_seed": dropout_seed,
        "dropout_step": declared.step,
        "mask": declared.mask,
        "deal": declared.deal,
    }
    _check_window(module, declared, arguments.pop("sliding_window", None))
    is_causal = arguments.pop("is_causal", None)
    if is_causal is not None and is_causal != declared.model.is_causal:
        raise InvalidArgument(
            f"armillary.hf: {_name(module)} has is_causal={is_causal}, its mask is_causal="
            f"{declared.model.is_causal}; the same of both is required"
        )
    for name, value in arguments.items():
        if name not in _WITHOUT_EFFECT and value is not None and value is not False:
            raise InvalidArgument(
                f"armillary.hf: {_name(module)} passes {name} to attention, which cannot honour it; None is "
                "required"
            )
    return settings


def _check_window(module: nn.Module, declared: DeclaredMask, window: int | None) -> None:
    """Raises `InvalidArgument` if the layer and its mask disagree about the sliding window."""
    of_mask = None if declared.model.left is None else declared.model.left + 1
    if window is not None and window != of_mask:
        raise InvalidArgument(
            f"armillary.hf: {_name(module)} has sliding_window={window}, its mask {of_mask}; the same of "
            "both is required"
        )


def _name(module: nn.Module) -> str:
    layer = getattr(module, "layer_idx", None)
    return type(module).__name__ + ("" if layer is None else f" of layer {layer}")
