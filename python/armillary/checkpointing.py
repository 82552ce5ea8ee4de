"""Layers that are recomputed in backward, without attention being computed again."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

_Context = AbstractContextManager[Any]


def keep_attention() -> tuple[_Context, _Context]:
    """For `torch.utils.checkpoint`: everything of a layer is computed again in backward but attention, whose
    output and log-sum-exp are kept, so that a recomputed layer sends nothing.

        checkpoint(layer, x, use_reentrant=False, context_fn=armillary.keep_attention)

    Strategies that trade heads for tokens keep q, k and v in that form too. Other policies name the op
    themselves: `torch.ops.armillary.attention_forward.default` in
    `torch.utils.checkpoint.create_selective_checkpoint_contexts`."""
    contexts: tuple[_Context, _Context] = create_selective_checkpoint_contexts(  # type: ignore[no-untyped-call]
        [torch.ops.armillary.attention_forward.default]
    )
    return contexts
