"""The masks of transformers, read from the functions that describe them.

transformers builds a mask as a function of (batch entry, head, query, key) out of the parts of its
`masking_utils`. Each part that is an intersection of bands is recognised by its code; anything else is
refused by name. Parts that transformers derives from the positions of a shard, such as packed documents, are
skipped: positions of a shard jump wherever the layout does, so documents are declared
(`armillary.hf.shard`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import torch
from transformers import masking_utils

from armillary._deal import Deal
from armillary.errors import InvalidArgument
from armillary.masks import Mask, check_causality, window


@dataclass(frozen=True)
class ModelMask:
    """Keys that a layer shows: causally or not, and at most so many tokens away; None: any distance."""

    is_causal: bool = False
    left: int | None = None
    right: int | None = None

    def __and__(self, other: ModelMask) -> ModelMask:
        return ModelMask(
            self.is_causal or other.is_causal, _least(self.left, other.left), _least(self.right, other.right)
        )


class Origin(Protocol):
    """The installation that made a mask."""

    @property
    def model_name(self) -> str: ...

    @property
    def is_installed(self) -> bool: ...


@dataclass(frozen=True)
class DeclaredMask:
    """The mask of one kind of layer in one forward pass, in the place of a mask tensor.

    Only `_hf_attention` reads it: any use of it as a tensor is refused."""

    mask: Mask
    model: ModelMask
    deal: Deal
    step: int
    origin: Origin = field(repr=False, compare=False)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse(name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> NoReturn:
        one = next(one for one in (*args, *(kwargs or {}).values()) if isinstance(one, cls))
        one.refuse(getattr(function, "__name__", str(function)))

    def refuse(self, use: str) -> NoReturn:
        """Raises `InvalidArgument` for a reader that wants a tensor."""
        if not self.origin.is_installed:
            raise InvalidArgument(
                f"armillary.hf: a layer of {self.origin.model_name} attends after uninstall(), as a "
                "checkpointed one does in backward; loss.backward() before it, or within "
                "`with armillary.hf.install(..)`, is required"
            )
        raise InvalidArgument(
            f"armillary.hf: {self.origin.model_name} reads the mask by itself ({use}), outside of attention "
            "over ranks; a model whose layers only hand it to the AttentionInterface is required"
        )


_OPERATORS = "getitem len iter bool add radd sub rsub mul rmul and rand or ror invert lt le gt ge"


def _refusing(name: str) -> Callable[..., NoReturn]:
    return lambda self, *_: self.refuse(name)


for _operator in _OPERATORS.split():
    setattr(DeclaredMask, f"__{_operator}__", _refusing(_operator))


def _least(a: int | None, b: int | None) -> int | None:
    known = [one for one in (a, b) if one is not None]
    return min(known) if known else None


def _code(function: Callable[..., Any]) -> object:
    return getattr(function, "__code__", function)


# Parts with arguments are closures: those of one part share their code.
_NOTHING = torch.zeros(1, 1, dtype=torch.bool)
_AND = _code(masking_utils.and_masks())
_OR = _code(masking_utils.or_masks())
_WINDOW = _code(masking_utils.sliding_window_overlay(1))
_WINDOW_BOTH = _code(masking_utils.sliding_window_bidirectional_overlay(1))
_PACKED = _code(masking_utils.packed_sequence_mask_function(_NOTHING))
_REMAPPED = _code(masking_utils.remap_positions_for_packed_sequence(masking_utils.and_masks(), _NOTHING))
_REFUSED = {
    _OR: "a union of masks (or_mask_function, or blocks that attend in both directions)",
    _code(masking_utils.chunked_overlay(1, _NOTHING)): "chunked attention",
    _code(masking_utils.blockwise_overlay(_NOTHING)): "blocks that attend in both directions",
    _code(masking_utils.padding_mask_function(_NOTHING)): "padding",
}


def _variables(function: Callable[..., Any]) -> dict[str, Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return dict(zip(function.__code__.co_freevars, cells, strict=True))


def model_mask_of(function: Callable[..., Any]) -> ModelMask:
    """The mask that a mask function of transformers describes.

    Raises `InvalidArgument`, with the name of the part, if it is not known to be an intersection of bands."""
    if function is masking_utils.causal_mask_function:
        return ModelMask(is_causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return ModelMask()
    code = _code(function)
    if code is _AND:
        mask = ModelMask()
        for part in _variables(function)["mask_functions"]:
            mask = mask & model_mask_of(part)
        return mask
    if code is _WINDOW:
        return ModelMask(left=_variables(function)["sliding_window"] - 1)
    if code is _WINDOW_BOTH:
        distance = _variables(function)["sliding_window"]
        return ModelMask(left=distance, right=distance)
    if code is _REMAPPED:
        return model_mask_of(_variables(function)["mask_function"])
    if code is _PACKED:
        return ModelMask()
    name = _REFUSED.get(code) or f"the mask function {getattr(function, '__qualname__', function)}"
    raise InvalidArgument(
        f"armillary.hf: the model masks with {name}; intersections of causal, bidirectional and sliding "
        "window masks are required"
    )


def declared_mask(declared: Mask, model: ModelMask, seq_len: int) -> Mask:
    """The mask of a layer: the declared one within the model's window.

    Raises `InvalidArgument` if one of the two is causal and the other is not: neither replaces the other."""
    check_causality(declared, model.is_causal, seq_len, "the model")
    if model.left is None and model.right is None:
        return declared
    left = seq_len if model.left is None else model.left
    right = seq_len if model.right is None else model.right
    return declared & window(left, 0 if model.is_causal else right)
