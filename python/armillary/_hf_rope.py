"""Rotary positions whose frequencies depend on the longest position of the sequence, which another rank has.

One more position, the largest of all ranks, goes in with those of this rank, and what comes out for it is
dropped."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from armillary._hf_families import rope_types
from armillary.errors import InvalidArgument


def give_longest(model: PreTrainedModel, longest: Callable[[], int | None]) -> list[RemovableHandle]:
    """Hooks on all modules that compute frequencies from positions; `longest` is asked in every call."""

    def before(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
        last = longest()
        if last is None:
            raise InvalidArgument(
                f"armillary.hf: {type(module).__name__} is computed outside of a forward pass of the model, "
                "so the length of its sequence is not known; the whole model is required"
            )
        ids = arguments["position_ids"]
        arguments["position_ids"] = torch.cat([ids, ids.new_full((*ids.shape[:-1], 1), last)], -1)
        return (), arguments

    def after(_: nn.Module, __: tuple[Any, ...], out: Any) -> Any:
        # Cosine and sine, or one tensor of complex numbers.
        return out[..., :-1, :] if isinstance(out, Tensor) else tuple(one[..., :-1, :] for one in out)

    hooks = []
    for module in model.modules():
        config = getattr(module, "config", model.config)
        if _is_rotary(module) and rope_types(config) - {"default"}:
            hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.append(module.register_forward_hook(after))
    return hooks


def _is_rotary(module: nn.Module) -> bool:
    if not any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False)):
        return False
    return "position_ids" in inspect.signature(module.forward).parameters
