"""Modules, hooks and functions that were put into a model from outside, and not compared with one device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from armillary.errors import InvalidArgument

# Packages whose modules and hooks compute each token by itself, or in attention that is ours.
_KNOWN = ("torch.", "transformers.", "accelerate.", "peft.", "armillary.")
_NOISE = "transformers.integrations.neftune"  # its noise is scaled by the number of tokens
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
#: Kinds of PEFT that change the product of a layer, for each token by itself.
ADAPTERS = frozenset({"IA3", "LORA"})


def check_attention(model: nn.Module, name: str) -> None:
    """Raises `InvalidArgument` for a part whose configuration asks for another attention."""
    for path, module in model.named_modules():
        if not isinstance(module, PreTrainedModel) and not is_attention(module):
            continue
        config = getattr(module, "config", None)
        value = getattr(config, "_attn_implementation", name)
        if value != name:
            raise InvalidArgument(
                f"armillary.hf: {path or type(model).__name__} has _attn_implementation={value!r} since "
                "install, which attends to the tokens of this rank alone; the one that install chose is "
                "required: uninstall() before set_attn_implementation(..)"
            )


def is_attention(module: nn.Module) -> bool:
    """Whether it is a layer's attention, or a part of one; in transformers its class says so."""
    return "attention" in type(module).__name__.lower()


def check_additions(model: nn.Module) -> None:
    """Raises `InvalidArgument` for a module, a hook or a forward that is none of transformers."""
    for path, module in model.named_modules():
        for kind, added in _additions(module):
            origin = getattr(added, "__module__", None) or ""
            if origin.startswith(_KNOWN) and origin != _NOISE:
                continue
            what = getattr(added, "__qualname__", type(added).__name__)
            why = "noise scaled by the tokens of a rank" if origin == _NOISE else "not known to be right"
            raise InvalidArgument(
                f"armillary.hf: {path or type(model).__name__} has the {kind} {what} of {origin}, {why}; a "
                "model as transformers builds it, or untested=True after armillary.check, is required"
            )


def _additions(module: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "class", type(module)
    for name in _HOOKS:
        yield from (("hook", _function(hook)) for hook in getattr(module, name).values())
    forward = module.__dict__.get("forward")
    if forward is not None:
        yield "forward", _function(forward)


def _function(function: Callable[..., Any]) -> Any:
    """The function behind decorators, methods and partials."""
    while hasattr(function, "func") or hasattr(function, "__func__"):
        function = getattr(function, "func", None) or function.__func__  # type: ignore[attr-defined]
    return inspect.unwrap(function)


def base_model(model: nn.Module) -> nn.Module:
    """The model of transformers inside one of PEFT, or the given one.

    Raises `InvalidArgument` for adapters that add tokens or keys."""
    if not type(model).__module__.startswith("peft.") or not hasattr(model, "get_base_model"):
        return model
    for name, config in model.peft_config.items():  # type: ignore[union-attr, operator]
        kind = getattr(config.peft_type, "value", config.peft_type)
        if kind not in ADAPTERS:
            raise InvalidArgument(
                f"install: the PEFT adapter {name} is of kind {kind}; one of {', '.join(sorted(ADAPTERS))} "
                "is required"
            )
        if getattr(config, "alora_invocation_tokens", None):
            raise InvalidArgument(
                f"install: the PEFT adapter {name} begins at alora_invocation_tokens, which one rank "
                "has; one without them is required"
            )
    base: nn.Module = model.get_base_model()  # type: ignore[operator]
    return base
