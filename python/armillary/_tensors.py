"""Checks of tensors that every call makes."""

from __future__ import annotations

import torch
from torch import Tensor

from armillary.errors import InvalidArgument


def check_strided(what: str, value: object, required: str = "a tensor") -> Tensor:
    """Returns `given`. Raises `InvalidArgument` unless it is a tensor with strides. `what` names it, with the
    call: `shard: input_ids`."""
    if not isinstance(value, Tensor):
        raise InvalidArgument(f"{what} is a {type(value).__name__}; {required} is required")
    if value.layout != torch.strided or value.is_nested:
        raise InvalidArgument(
            f"{what} is nested, sparse or of another layout; a strided tensor is required: packed documents "
            "are one sequence, with cu_seqlens or document_ids"
        )
    return value
