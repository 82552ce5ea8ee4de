"""Checks of tensors that every call makes."""

from __future__ import annotations

import torch
from torch import Tensor

from armillary.errors import InvalidArgument


def check_strided(what: str, given: object, required: str = "a tensor") -> Tensor:
    """Returns `given`. Raises `InvalidArgument` unless it is a tensor with strides. `what` names it, with the
    call: `shard: input_ids`."""
    if not isinstance(given, Tensor):
        raise InvalidArgument(f"{what} is a {type(given).__name__}; {required} is required")
    if given.layout != torch.strided or given.is_nested:
        raise InvalidArgument(
            f"{what} is nested, sparse or of another layout; a strided tensor is required: packed documents "
            "are one sequence, with cu_seqlens or document_ids"
        )
    return given
