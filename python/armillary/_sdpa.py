"""Attention over ranks for code that calls `scaled_dot_product_attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from armillary._deal import Deal
from armillary._spread import Spread
from armillary.errors import InvalidArgument
from armillary.masks import Mask, as_mask, check_causality

# Functions that attend without a call of scaled_dot_product_attention that could be seen.
_UNSEEN: dict[object, str] = {
    functional.multi_head_attention_forward: "torch.nn.MultiheadAttention",
    torch._native_multi_head_attention: "torch.nn.MultiheadAttention",
    torch._transformer_encoder_layer_fwd: "torch.nn.TransformerEncoderLayer",
}


class PatchedSdpa(TorchFunctionMode):
    """See `SequenceParallel.patch_sdpa`. Nothing is replaced: the mode sees the calls of its thread."""

    def __init__(
        self,
        sp: Spread,
        attention: Callable[..., Tensor],
        mask: str | Mask | None,
        seq_len: int | None,
        deal: Deal | None,
    ) -> None:
        super().__init__()
        self._sp = sp
        self._attention = attention
        self._mask = None if mask is None else as_mask(mask)
        self._seq_len = seq_len
        self._deal = deal
        #: Calls of attention so far.
        self.calls = 0

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is functional.scaled_dot_product_attention:
            self.calls += 1
            return self._attend(*args, **(kwargs or {}))
        if function in _UNSEEN:
            raise InvalidArgument(
                f"patch_sdpa: {_UNSEEN[function]} is called, which attends by itself; modules that call "
                "scaled_dot_product_attention are required"
            )
        return function(*args, **(kwargs or {}))

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        if self.calls == 0 and failure[0] is None:
            raise InvalidArgument(
                "patch_sdpa: scaled_dot_product_attention was not called, so the ranks attended to nothing "
                "but their own tokens, if at all; code that calls it in this thread is required"
            )

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        with self._sp._refusals():
            if attn_mask is not None:
                raise InvalidArgument(
                    f"patch_sdpa: attn_mask {list(attn_mask.shape)} is given; None is required: declare the "
                    "mask, such as SequenceParallel(mask=..) or patch_sdpa(deal=batch.deal)"
                )
            if query.dim() != 4 or key.shape[-2] != query.shape[-2]:
                raise InvalidArgument(
                    f"patch_sdpa: query {list(query.shape)}, key {list(key.shape)}; [B, H, L, D] with as "
                    "many keys as queries is required"
                )
            if key.shape[1] != query.shape[1] and not enable_gqa:
                raise InvalidArgument(
                    f"patch_sdpa: {query.shape[1]} query heads, {key.shape[1]} key heads; enable_gqa=True is "
                    "required"
                )
            if dropout_p > 0:
                raise InvalidArgument(
                    f"patch_sdpa: dropout_p is {dropout_p}; 0, or SequenceParallel.attention with a seed, is "
                    "required"
                )
            mask, length = self._sp._dealt("patch_sdpa", self._mask, self._seq_len, query, self._deal, dim=2)
            check_causality(mask, is_causal, length, "scaled_dot_product_attention")
        return self._attention(
            query, key, value, scale=scale, mask=mask, seq_len=length, deal=self._deal, format="BHLD"
        )
