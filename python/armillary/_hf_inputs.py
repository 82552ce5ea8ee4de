"""Inputs of a model whose tokens are a shard: what is taken, and what is refused by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from armillary.errors import InvalidArgument
from armillary.loss import IGNORED
from armillary.masks import Mask, check_causality

_REFUSED = {
    "past_key_values": "a cache",
    "cache": "a cache",
    "use_cache": "a cache",
    "output_attentions": "attention probabilities, which never exist",
    "output_router_logits": "the balance loss of routers, which is not that of the sequence",
    "encoder_hidden_states": "cross-attention",
    "logits_to_keep": "the last logits of a shard, which are not those of the sequence",
}
_GENERATE = "generate(), and whatever keeps a cache, after uninstall() on one device"


def refuse_unsharded(model: str) -> None:
    raise InvalidArgument(
        f"armillary.hf: {model} is called without `sharded`, so its tokens may be a whole sequence; on all "
        "ranks inputs = armillary.hf.shard(sp, input_ids=.., labels=..) and model(**inputs) is required, or "
        f"armillary.hf_trainer.Trainer in the place of that of transformers; {_GENERATE}"
    )


def refuse_inputs(arguments: dict[str, Any]) -> None:
    """Takes attention_mask out if it hides nothing. Raises `InvalidArgument` for inputs without a shard."""
    mask = arguments.pop("attention_mask", None)
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2 and bool(mask.all())):
        shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InvalidArgument(
            f"armillary.hf: attention_mask {shape} hides keys; none is required: give that of the whole "
            "sequence to armillary.hf.shard(attention_mask=..), which takes padding on the right, or declare "
            "packed documents with document_ids"
        )
    for name, meaning in _REFUSED.items():
        value = arguments.get(name)
        if value is not None and not (isinstance(value, (bool, int)) and not value):
            raise InvalidArgument(
                f"armillary.hf: {name} asks for {meaning}; leave it out"
                + (f": {_GENERATE}" if meaning == "a cache" else "")
            )
    if arguments.get("labels") is not None and arguments.get("shift_labels") is None:
        raise InvalidArgument(
            "armillary.hf: labels without shift_labels: the next token of a shard's last may lie on another "
            "rank; the batch that armillary.hf.shard returns is required"
        )


def check_padding(attention_mask: Tensor, input_ids: Tensor, labels: Tensor | None, mask: Mask) -> None:
    """Raises `InvalidArgument` unless no label depends on whether the padding of whole rows [B, S] is hidden:
    it is on the right, its labels are ignored, and no query sees later keys."""
    if attention_mask.shape != input_ids.shape:
        raise InvalidArgument(
            f"shard: attention_mask is {list(attention_mask.shape)}, input_ids {list(input_ids.shape)}; a "
            "number for each token, [B, S], is required"
        )
    is_token = attention_mask != 0
    if bool(is_token.all()):
        return
    if bool((is_token[:, 1:] & ~is_token[:, :-1]).any()):
        row = int((is_token[:, 1:] & ~is_token[:, :-1]).any(1).nonzero()[0])
        raise InvalidArgument(
            f"shard: attention_mask of row {row} hides tokens before one that it shows, as padding on the "
            "left does; padding on the right with ignored labels is required "
            "(tokenizer.padding_side = 'right'), or examples packed as documents, with document_ids"
        )
    check_causality(mask, True, input_ids.shape[1], "a batch with padding")
    if labels is not None and bool(((labels != IGNORED) & ~is_token).any()):
        row, at = ((labels != IGNORED) & ~is_token).nonzero()[0].tolist()
        raise InvalidArgument(
            f"shard: row {row} has the label {int(labels[row, at])} at token {at}, which attention_mask "
            f"hides; {IGNORED} is required for padding"
        )
