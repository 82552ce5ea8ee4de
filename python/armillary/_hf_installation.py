"""A model of transformers whose attention is spread over ranks, and what surrounds each forward pass."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from armillary._deal import Deal, check_deal
from armillary._hf_attention import attend
from armillary._hf_calls import Calls, check_outputs
from armillary._hf_families import configs_of
from armillary._hf_inputs import refuse_inputs, refuse_unsharded
from armillary._hf_masks import DeclaredMask, declared_mask, model_mask_of
from armillary._hf_modules import check_additions, check_attention
from armillary._hf_rope import give_longest
from armillary._texts import count_of
from armillary.errors import InvalidArgument
from armillary.loss import IGNORED
from armillary.masks import packed_lengths
from armillary.sequence_parallel import SequenceParallel

SHARDED = "sharded"  # key of a batch
_OUTSIDE = "armillary.hf checks each call outside of graphs: torch.compile(model) without fullgraph=True"
_numbers = itertools.count()


class _Pass(threading.local):
    """The forward pass of this thread."""

    sequence: Deal | None = None
    step = 0
    longest: int | None = None  # position
    losses = 0
    called: set[int] = frozenset()  # type: ignore[assignment]


class Installation:
    """A model whose attention is spread over ranks, until `uninstall`; also a context manager."""

    def __init__(
        self, model: PreTrainedModel, sp: SequenceParallel, dropout_seed: int, trusted: bool
    ) -> None:
        self.model = model
        self.sp = sp
        self.name = f"armillary_{next(_numbers)}"
        self.is_installed = True
        #: What `check` found, if install was given a batch.
        self.report: Any = None
        self._dropout_seed = dropout_seed
        self._is_trusted = trusted
        self._before = {id(config): (config, config._attn_implementation) for config in configs_of(model)}
        self._pass = _Pass()
        self._steps = itertools.count()
        self._positions: tuple[Deal | None, list[Tensor], list[int]] = (None, [], [])
        self._calls = Calls(model)
        self._hooks: list[RemovableHandle] = []
        self._own = {name: model.__dict__.get(name) for name in ("_loss_function", "forward")}
        self._put_in()
        model.forward = self._around(model.forward)

    @property
    def model_name(self) -> str:
        """The class of the model, for texts."""
        return type(self.model).__name__

    def _put_in(self) -> None:
        self.is_installed = True
        AttentionInterface.register(self.name, _outside(self._attention))
        AttentionMaskInterface.register(self.name, _outside(self._mask))
        self.model.set_attn_implementation(self.name)
        self._hooks = give_longest(self.model, lambda: self._pass.longest)
        self.model.loss_function = self._loss_outside

    def _take_out(self) -> None:
        self.is_installed = False
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for config, implementation in self._before.values():
            config._attn_implementation_internal = implementation
        self._restore("_loss_function")
        for registry in (AttentionInterface, AttentionMaskInterface):
            registry._global_mapping.pop(self.name, None)

    def uninstall(self) -> None:
        """Restores the attention, the masks and the loss that the model had."""
        self._take_out()
        self._restore("forward")

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within it the model computes as it did before, also where others have wrapped its forward."""
        self._take_out()
        try:
            yield
        finally:
            self._put_in()

    def _restore(self, name: str) -> None:
        value, before = self.model.__dict__.get(name), self._own[name]
        if value is not None and self._is_own(value):
            self.model.__dict__.pop(name)
            if before is not None:
                self.model.__dict__[name] = before

    def _is_own(self, value: Any) -> bool:
        # Functions that others wrapped around it since stay, and pass calls on.
        return getattr(value, "__self__", None) is self or getattr(value, "installation", None) is self

    def __enter__(self) -> Installation:
        return self

    def __reduce_ex__(self, _: object) -> NoReturn:
        # Functions of a copy would still belong to the model that it was copied from.
        raise InvalidArgument(
            "armillary.hf: a model is copied or pickled while its attention is installed; uninstall() before "
            "it is required (its state_dict() may be saved at any time)"
        )

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def _around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward of the model, also where others call it without the hooks of its module."""

        names = list(inspect.signature(forward).parameters)
        before, after, end = _outside(self._begin), _outside(self._check), _outside(self._end)

        @functools.wraps(forward)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if not self.is_installed:
                return forward(*args, **kwargs)
            arguments = before({**dict(zip(names, args, strict=False)), **kwargs})
            try:
                outputs = forward(**arguments)
                after(arguments, outputs)
            finally:
                end()
            return outputs

        checked.installation = self  # type: ignore[attr-defined]
        outside = _outside(checked, recursive=False)
        outside.installation = self  # type: ignore[attr-defined]
        return outside

    def _begin(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with self.sp._refusals():
            return self._inputs(arguments)

    def _check(self, arguments: dict[str, Any], outputs: Any) -> None:
        with self.sp._refusals():
            self._calls.check(self._pass.called)
            tokens = _tokens(arguments)
            labelled = arguments.get("labels") is not None
            check_outputs(outputs, tuple(tokens.shape[:2]), losses=self._pass.losses, labelled=labelled)

    def _end(self) -> None:
        self._pass.sequence = self._pass.longest = None

    def _inputs(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Inputs of the model, by name, of a call as the caller makes it."""
        sharded = arguments.pop(SHARDED, None)
        tokens = _tokens(arguments)
        if sharded is None:
            refuse_unsharded(self.model_name)
        check_deal("armillary.hf", sharded, self.sp._own_deal)
        check_attention(self.model, self.name)
        if not self._is_trusted:
            check_additions(self.model)
        refuse_inputs(arguments)
        arguments["position_ids"] = self._position_ids(arguments.get("position_ids"), tokens, sharded)
        shift_labels = arguments.pop("shift_labels", None)
        if shift_labels is not None:
            arguments["labels"] = shift_labels
        arguments["use_cache"] = False
        now = self._pass
        now.sequence, now.step, now.losses, now.called = sharded, next(self._steps), 0, set()
        return arguments

    def _position_ids(self, ids: Tensor | None, tokens: Tensor, sharded: Deal) -> Tensor:
        """Positions of the tokens of this rank [B, L]: global, or within the document if there are some."""
        if self._positions[0] != sharded:
            index = self.sp.positions(sharded.seq_len, sharded.mask)
            self._check_tokens(sharded)
            lengths = packed_lengths(sharded.mask)
            allowed, longest = [index], [sharded.seq_len - 1]
            if lengths:
                within = torch.cat([torch.arange(length) for length in lengths])
                allowed, longest = [within[index], index], [int(within.max()), *longest]
            self._positions = (sharded, allowed, longest)
        _, allowed, longest = self._positions
        if len(allowed[0]) != tokens.shape[1]:
            raise InvalidArgument(
                f"armillary.hf: {count_of(tokens.shape[1], 'token')} on rank {self.sp.rank}; layout "
                f"{self.sp.layout} gives it {len(allowed[0])} of {sharded.seq_len}: the batch that "
                "armillary.hf.shard returns is required"
            )
        if ids is None:
            ids = allowed[0].to(tokens.device).expand(tokens.shape[0], -1)
        same = [at for at, one in enumerate(allowed) if bool((ids.cpu() == one).all())]
        if not same:
            first = int((ids.cpu() != allowed[0]).expand(tokens.shape[0], -1).nonzero()[0][1])
            raise InvalidArgument(
                f"armillary.hf: position_ids of rank {self.sp.rank} are {ids[..., first].tolist()} at "
                f"token {first}; layout {self.sp.layout} and mask {str(sharded.mask)[:80]} have "
                f"{int(allowed[0][first])} there: those, or none, are required"
            )
        self._pass.longest = longest[same[0]]
        return ids

    def _check_tokens(self, sharded: Deal) -> None:
        """Raises `InvalidArgument`, on all ranks alike, if one has no token: transformers fails there."""
        for rank, size in enumerate(self.sp._sizes_of_ranks(sharded.seq_len, sharded.mask)):
            if size == 0:
                raise InvalidArgument(
                    f"armillary.hf: layout {self.sp.layout} gives rank {rank} none of {sharded.seq_len} "
                    "tokens; one for each rank is required"
                )

    def _mask(self, q_length: int, kv_length: int, **arguments: Any) -> DeclaredMask:
        with self.sp._refusals():
            return self._declared(q_length, kv_length, arguments)

    def _declared(self, q_length: int, kv_length: int, arguments: dict[str, Any]) -> DeclaredMask:
        sequence = self._pass.sequence
        if sequence is None:
            raise InvalidArgument(
                f"armillary.hf: a part of {self.model_name} is called by itself; the whole model that "
                "install was given is required"
            )
        offsets = (arguments.get("q_offset", 0), arguments.get("kv_offset", 0))
        if q_length != kv_length or any(offset is not None and offset != 0 for offset in offsets):
            raise InvalidArgument(
                f"armillary.hf: a mask of {count_of(q_length, 'query', 'queries')} over "
                f"{count_of(kv_length, 'key')} at offsets {offsets}; as many keys as queries are "
                "required: neither cross-attention nor a cache"
            )
        if arguments.get("attention_mask") is not None:
            raise InvalidArgument(
                f"armillary.hf: {self.model_name} makes an attention_mask for the tokens of a rank; "
                "a model that makes none is required"
            )
        model = model_mask_of(arguments["mask_function"])
        mask = declared_mask(sequence.mask, model, sequence.seq_len)
        if self.sp.layout == "balanced" and mask != sequence.mask:
            raise InvalidArgument(
                f"armillary.hf: layout balanced deals tokens by the mask, and {self.model_name} has layers "
                "with a sliding window; a layout of all masks, such as zigzag, is required"
            )
        return DeclaredMask(mask, model, sequence, self._pass.step, self)

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: object,
        **arguments: Any,
    ) -> tuple[Tensor, None]:
        arguments |= {"attention_mask": attention_mask, "dropout_seed": self._dropout_seed, "origin": self}
        out = attend(self.sp, module, (query, key, value), arguments)
        if self._pass.sequence is not None:  # in backward, checkpointed layers call it outside of a pass
            self._pass.called.add(id(module))
        return out

    def _loss_outside(self, *args: Any, **arguments: Any) -> Tensor:
        loss: Tensor = _outside(self._loss)(*args, **arguments)
        return loss

    def _loss(
        self, logits: Tensor, labels: Tensor, *_: object, num_items_in_batch: Any = None, **__: object
    ) -> Tensor:
        """The loss of the sequence. With num_items_in_batch: this rank's share of it, as transformers defines
        it; the shares of all ranks sum to the loss."""
        self._pass.losses += 1
        if num_items_in_batch is None:
            return self.sp.loss(logits, labels)
        flat = logits.reshape(-1, logits.shape[-1]).float()
        mine = functional.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum")
        share: Tensor = mine / num_items_in_batch
        return share


def _outside(function: Callable[..., Any], *, recursive: bool = True) -> Callable[..., Any]:
    """The function, outside of the graphs of torch.compile."""
    disable: Callable[..., Any] = torch.compiler.disable
    outside: Callable[..., Any] = disable(function, recursive=recursive, reason=_OUTSIDE)
    return outside


def _tokens(arguments: Mapping[str, Any]) -> Tensor:
    tokens = arguments.get("input_ids")
    tokens = arguments.get("inputs_embeds") if tokens is None else tokens
    if not isinstance(tokens, Tensor):
        raise InvalidArgument("armillary.hf: no input_ids and no inputs_embeds; one of them is required")
    return tokens
