"""The arguments of `SequenceParallel.attention`, and the checks of each by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import BlockMask

from armillary._deal import Deal
from armillary._tensors import check_strided
from armillary._texts import count_of
from armillary.errors import InvalidArgument
from armillary.masks import Mask

Format = Literal["BLHD", "BHLD"]
AnyMask = str | Mask | BlockMask | Tensor


def check_call(format: str, qkv: Mapping[str, Tensor], per_head: Mapping[str, Tensor | None]) -> None:
    """Raises `InvalidArgument` for tensors that the op would misread, or refuse on this rank alone."""
    if format not in ("BLHD", "BHLD"):
        raise InvalidArgument(f"attention: format is {format!r}; BLHD or BHLD is required")
    for name, value in qkv.items():
        _check_tensor(name, value, "a tensor")
        if value.dim() != 4:
            raise InvalidArgument(
                f"attention: {name} has {count_of(value.dim(), 'dim')}; [batch, tokens, heads, dim] is "
                "required, or [batch, heads, tokens, dim] with format='BHLD'"
            )
    for name, one in per_head.items():
        if one is not None:
            _check_tensor(name, one, "a tensor, one number per query head,")
    # Transforms of torch.func; a graph that is compiled has none.
    is_transformed = torch._C._functorch.is_functorch_wrapped_tensor
    if not torch.compiler.is_compiling() and any(map(is_transformed, qkv.values())):
        raise InvalidArgument(
            "attention: called in a transform of torch.func; plain tensors and backward, without torch.func, "
            "are required"
        )
    if forward_ad._current_level >= 0 and any(map(_has_tangent, qkv.values())):
        raise InvalidArgument(
            "attention: a forward-mode derivative was asked for; only those of backward exist: tensors "
            "without tangents are required"
        )
    first, one = next(iter(qkv.items()))
    device = one.device
    for name, other in (*qkv.items(), *per_head.items()):
        if other is not None and other.device != device:
            raise InvalidArgument(
                f"attention: {name} is on {other.device}, {first} on {device}; one device for all is required"
            )


def _has_tangent(tensor: Tensor) -> bool:
    parts = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    return parts.tangent is not None


def _check_tensor(name: str, value: object, required: str) -> None:
    # By name: importing the class takes seconds, and no other tensor has it.
    if type(value).__name__ == "DTensor":
        raise InvalidArgument(
            f"attention: {name} is a DTensor; the local tensor of this rank is required: {name}.to_local()"
        )
    tensor = check_strided(f"attention: {name}", value, required)
    if tensor.device.type not in ("cpu", "meta"):
        raise InvalidArgument(
            f"attention: {name} is on {tensor.device}; a tensor on the CPU is required, for there are no "
            f"kernels for other devices yet: {name}.cpu()"
        )


@dataclass
class Options:
    """The settings of `SequenceParallel.attention`, in its order. Not frozen: that takes 3 us of a call."""

    scale: float | None = None
    softcap: float | None = None
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    dropout_seed: int | None = None
    dropout_step: int = 0
    mask: AnyMask | None = None
    cu_seqlens: Tensor | None = None
    seq_len: int | None = None
    kv_seq_len: int | None = None
    deal: Deal | None = None
    format: Format = "BLHD"


NAMES = frozenset(field.name for field in fields(Options))


def check_options(options: Options) -> None:
    if options.dropout != 0 and options.dropout_seed is None:
        raise InvalidArgument(
            f"attention: dropout {options.dropout} without dropout_seed; a number for every layer is required"
        )
    _check_numbers(scale=options.scale, softcap=options.softcap, dropout=options.dropout)
    _check_whole_numbers(
        dropout_seed=options.dropout_seed,
        dropout_step=options.dropout_step,
        seq_len=options.seq_len,
        kv_seq_len=options.kv_seq_len,
    )
    if options.kv_seq_len is not None and options.kv_seq_len < 0:
        raise InvalidArgument(f"attention: kv_seq_len is {options.kv_seq_len}; 0 or more is required")


def _check_numbers(**numbers: float | None) -> None:
    for name, value in numbers.items():
        # A tensor of one number becomes that number.
        if isinstance(value, Tensor) and (value.numel() != 1 or value.is_complex() or value.is_meta):
            raise InvalidArgument(
                f"attention: {name} is a tensor, {value.dtype} {list(value.shape)} on {value.device}; a "
                "number is required, or a tensor of one"
            )
        if value is not None and not isinstance(value, int | float | Tensor):
            raise InvalidArgument(f"attention: {name} is a {type(value).__name__}; a number is required")


def _check_whole_numbers(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is None or (isinstance(value, torch.SymInt) and name == "seq_len"):
            continue
        if not isinstance(value, int) or not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"attention: {name} is {value!r}; a whole number of 64 bits is required")
