"""One device, written plainly: the model and the attention that `check` compares with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from armillary import _native
from armillary.errors import InvalidArgument
from armillary.loss import IGNORED
from armillary.masks import document_lengths
from armillary.sequence_parallel import SequenceParallel

_SETTINGS = ("scale", "softcap", "alibi_slopes", "sinks")


@dataclass(frozen=True)
class Call:
    """One call of attention: its mask, and its output [B, L, H, E]."""

    mask: str
    seq_len: int
    out: Tensor


@dataclass(frozen=True)
class Logits:
    """Logits [B, L, V] of the tokens at some positions [L]; with padding, those [B, S] that are shown."""

    values: Tensor
    positions: Tensor
    shown: Tensor | None = None


class Observed(SequenceParallel):
    """A `SequenceParallel` that remembers its calls of attention."""

    def __init__(self, sp: SequenceParallel) -> None:
        self.__dict__.update(sp.__dict__)
        self.calls: list[Call] = []
        self.logits: Logits | None = None

    def attention(self, q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
        if settings.get("dropout"):
            raise InvalidArgument(
                f"check: dropout is {settings['dropout']}; 0 is required, as in evaluation mode"
            )
        if settings.get("kv_seq_len") is not None:
            raise InvalidArgument("check: kv_seq_len is given; None is required: attention of one sequence")
        format = settings.get("format", "BLHD")
        as_blhd = q.transpose(1, 2) if format == "BHLD" else q
        sequence = (settings.get(name) for name in ("mask", "cu_seqlens", "seq_len", "deal"))
        mask = self._mask_of(as_blhd, *sequence)
        out = self._attend(q, k, v, mask, settings)
        self.calls.append(Call(*mask, (out.transpose(1, 2) if format == "BHLD" else out).detach()))
        return out

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: tuple[str, int], settings: dict[str, Any]
    ) -> Tensor:
        return super().attention(q, k, v, **settings)


class OneDevice(Observed):
    """A group of one rank that attends with an S x S matrix, in the dtype of its inputs."""

    def __init__(self, sp: SequenceParallel) -> None:
        super().__init__(sp)
        self.group_name, self.rank, self.world, self.layout = "", 0, 1, "contiguous"

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: tuple[str, int], settings: dict[str, Any]
    ) -> Tensor:
        if settings.get("format", "BLHD") == "BLHD":
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        options = {name: settings.get(name) for name in _SETTINGS}
        out = dense_attention(q, k, v, dense_mask(*mask), **options)
        return out.transpose(1, 2) if settings.get("format", "BLHD") == "BLHD" else out


def dense_mask(text: str, tokens: int) -> Tensor:
    """[S, S] bool: the keys that each query sees."""
    dense = torch.zeros(tokens, tokens, dtype=torch.bool)
    q, k = torch.arange(tokens).unsqueeze(1), torch.arange(tokens).unsqueeze(0)
    for q_begin, q_end, k_begin, k_end, lo, hi in _native.Mask(text, tokens, tokens).bands():
        rectangle = (q >= q_begin) & (q < q_end) & (k >= k_begin) & (k < k_end)
        dense |= rectangle & (k - q >= lo) & (k - q <= hi)
    return dense


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention [B, H, S, E] of q [B, H, S, D], k [B, G, S, D], v [B, G, S, E]; 0 for a query without keys.

    Products have the dtype of the inputs, the softmax at least fp32, as eager attention of transformers."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if alibi_slopes is not None:
        at = torch.arange(q.shape[2])
        scores = scores - alibi_slopes.view(1, -1, 1, 1) * (at.unsqueeze(0) - at.unsqueeze(1)).abs()
    scores = scores.masked_fill(~sees, float("-inf"))
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    has_keys = sees.any(-1, keepdim=True)
    probabilities = torch.where(has_keys, scores, 0.0).softmax(-1) * has_keys
    return probabilities[..., : k.shape[2]].to(v.dtype) @ v


def plain(model: Any, batch: Mapping[str, Tensor | None]) -> tuple[Tensor, Logits]:
    """Loss and logits of a model of transformers, called as its documentation says, with eager attention.

    Documents are called one by one; the loss is then the mean over all labels of next tokens."""
    inputs, labels, documents = batch["input_ids"], batch["labels"], batch.get("document_ids")
    assert inputs is not None and labels is not None
    shown = batch.get("attention_mask")
    with _eager(model):
        if documents is None:
            extra = {} if shown is None else {"attention_mask": shown}
            out = model(input_ids=inputs, labels=labels, use_cache=False, **extra)
            loss, logits = out.loss, out.logits
        else:
            parts = torch.split(inputs, document_lengths(documents), 1)
            logits = torch.cat([model(input_ids=part, use_cache=False).logits for part in parts], 1)
            flat = logits[:, :-1].flatten(0, 1)
            flat = flat if flat.dtype == torch.float64 else flat.float()
            loss = functional.cross_entropy(flat, labels[:, 1:].flatten(), ignore_index=IGNORED)
    positions = torch.arange(inputs.shape[1])
    return loss, Logits(logits.detach(), positions, None if shown is None else shown != 0)


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    configs = {id(one.config): one.config for one in model.modules() if hasattr(one, "config")}
    before = {key: getattr(one, "_attn_implementation", None) for key, one in configs.items()}
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        for key, implementation in before.items():
            if implementation is not None:
                configs[key]._attn_implementation_internal = implementation
