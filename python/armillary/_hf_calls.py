"""Calls and outputs of a forward pass: no route around attention over ranks goes unseen."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from armillary._hf_modules import is_attention
from armillary.errors import InvalidArgument

# Outputs that are those of this rank's tokens, one by one.
_PER_TOKEN = frozenset({"logits", "last_hidden_state", "hidden_states"})


class Calls:
    """The attention layers of a model, and those that called attention over ranks in one forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._name = type(model).__name__
        self._layers = {id(module): name for name, module in model.named_modules() if _attends(module)}
        self._stacks = [
            [(f"{name}.{at}", {id(part) for part in layer.modules()}) for at, layer in enumerate(stack)]
            for name, stack in model.named_modules()
            if isinstance(stack, nn.ModuleList)
        ]

    def check(self, called: set[int]) -> None:
        """Raises `InvalidArgument` for a layer that did not call attention over ranks."""
        missed = [name for layer, name in self._layers.items() if layer not in called]
        for stack in self._stacks:
            without = [name for name, parts in stack if not parts & called]
            missed += without if len(without) < len(stack) else []
        if missed or not called:
            raise InvalidArgument(
                f"armillary.hf: {missed[0] if missed else 'no layer'} of {self._name} "
                f"{'did not attend' if missed else 'attended'} over ranks in this forward pass; layers that "
                "all call the AttentionInterface of transformers, each time, are required"
            )


def _attends(module: nn.Module) -> bool:
    """Whether it is the innermost module of a layer's attention."""
    inner = (part for part in module.modules() if part is not module)
    return is_attention(module) and not any(map(is_attention, inner))


def check_outputs(outputs: Any, tokens: tuple[int, ...], *, losses: int, labelled: bool) -> None:
    """Raises `InvalidArgument` unless the outputs are those of this rank's tokens [B, L], and the loss is
    that of all ranks."""
    if labelled and losses != 1:
        raise InvalidArgument(
            f"armillary.hf: the model called its loss function {losses} times for its labels, so its loss is "
            "not that of all ranks; a model that calls it once, or a loss of your own, is required"
        )
    for name, value in _named(outputs):
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if one is None or name == "loss" or (name in _PER_TOKEN and _is_per_token(one, tokens)):
                continue
            shape = list(one.shape) if isinstance(one, Tensor) else type(one).__name__
            raise InvalidArgument(
                f"armillary.hf: the model returns {name} ({shape}), which need not be what one device "
                f"returns; outputs of each token {list(tokens)} alone are required: "
                f"{', '.join(sorted(_PER_TOKEN))}"
            )


def _named(outputs: Any) -> list[tuple[str, Any]]:
    if hasattr(outputs, "items"):
        return list(outputs.items())
    parts = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [("loss" if isinstance(one, Tensor) and one.dim() == 0 else "logits", one) for one in parts]


def _is_per_token(value: Any, tokens: tuple[int, ...]) -> bool:
    return isinstance(value, Tensor) and value.dim() >= 3 and tuple(value.shape[:2]) == tokens
