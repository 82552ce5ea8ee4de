"""Attention of a layer of transformers, in the place of its eager attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from armillary._hf_masks import DeclaredMask
from armillary.errors import InvalidArgument

if TYPE_CHECKING:
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
    sp: SequenceParallel,
    dropout_seed: int,
    module: nn.Module,
    qkv: tuple[Tensor, Tensor, Tensor],
    **given: Any,
) -> tuple[Tensor, None]:
    """Attention [B, L, H, E] of q, k, v [B, H, L, D], as transformers calls it.

    Raises `InvalidArgument`, with its name, for an argument that attention here cannot honour."""
    declared = given.pop("attention_mask")
    if not isinstance(declared, DeclaredMask):
        raise InvalidArgument(
            f"armillary.hf: {_name(module)} was given attention_mask as a {type(declared).__name__}; masks "
            "that transformers builds by name are required, and documents are declared with "
            "armillary.hf.shard"
        )
    q, k, v = qkv
    if k.shape[2] != q.shape[2]:
        raise InvalidArgument(
            f"armillary.hf: {_name(module)} attends from {q.shape[2]} tokens to {k.shape[2]}; as many keys "
            "as queries are required: neither cross-attention nor a cache"
        )
    scale, softcap = given.pop("scaling", None), given.pop("softcap", None)
    dropout, sinks = given.pop("dropout", 0.0) or 0.0, given.pop("s_aux", None)
    _check_window(module, declared, given.pop("sliding_window", None))
    is_causal = given.pop("is_causal", None)
    if is_causal is not None and is_causal != declared.model.is_causal:
        raise InvalidArgument(
            f"armillary.hf: {_name(module)} has is_causal={is_causal}, its mask is_causal="
            f"{declared.model.is_causal}; the same of both is required"
        )
    for name, value in given.items():
        if name not in _WITHOUT_EFFECT and value is not None and value is not False:
            raise InvalidArgument(
                f"armillary.hf: {_name(module)} passes {name} to attention, which cannot honour it; None is "
                "required"
            )
    out = sp.attention(
        q,
        k,
        v,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout=dropout,
        dropout_seed=dropout_seed * _SEED_STRIDE + int(getattr(module, "layer_idx", 0) or 0),
        dropout_step=declared.step,
        mask=declared.mask,
        seq_len=declared.seq_len,
        format="BHLD",
    )
    return out.transpose(1, 2), None


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
