"""Models of Hugging Face transformers over sequences that are spread over ranks.

    sp = armillary.SequenceParallel(mesh["cp"])
    armillary.hf.install(model, sp, check=batch)  # compares a short batch with one device
    inputs = armillary.hf.shard(sp, input_ids=input_ids, labels=labels, document_ids=document_ids)
    loss = model(**inputs).loss  # that of one device, on every rank

`install` registers an attention and a mask function with transformers, for this model alone. A model, a mask
or a feature that cannot be honoured is an error that names it. Raises `BuildError` on import for a
transformers before 5.24."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional

from armillary._load import check_transformers

check_transformers((5, 24))

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel  # noqa: E402

from armillary._deal import Deal, check_deal  # noqa: E402
from armillary._hf_attention import attend  # noqa: E402
from armillary._hf_calls import Calls, check_outputs  # noqa: E402
from armillary._hf_families import FAMILIES, REFUSED, check_family, configs_of  # noqa: E402
from armillary._hf_inputs import check_padding, refuse_inputs, refuse_unsharded  # noqa: E402
from armillary._hf_masks import DeclaredMask, declared_mask, model_mask_of  # noqa: E402
from armillary._hf_modules import base_model, check_additions, check_attention  # noqa: E402
from armillary._hf_rope import give_longest  # noqa: E402
from armillary._packing import pack  # noqa: E402
from armillary.errors import InvalidArgument  # noqa: E402
from armillary.loss import IGNORED  # noqa: E402
from armillary.masks import packed_lengths  # noqa: E402
from armillary.sequence_parallel import SequenceParallel  # noqa: E402

__all__ = ["FAMILIES", "REFUSED", "Installation", "install", "pack", "shard"]

_SHARDED = "sharded"  # key of a batch
_OUTSIDE = "armillary.hf checks each call outside of graphs: torch.compile(model) without fullgraph=True"
_numbers = itertools.count()


def shard(
    sp: SequenceParallel,
    *,
    input_ids: Tensor,
    labels: Tensor | None = None,
    document_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    ragged: Literal["refuse", "uneven"] = "refuse",
) -> dict[str, Any]:
    """This rank's inputs for ``model(**inputs)`` from whole sequences [B, S], the same on all ranks.

    labels: of the same positions as input_ids, as transformers wants them. document_ids: packed documents,
    each of which attends to itself only; see `SequenceParallel.shard`. attention_mask: ones, and zeros for
    padding on the right whose labels are ignored, which no token of a causal model sees. It is checked, and
    not handed on: logits of the padding itself are those without it.

    Returns input_ids, position_ids (within the document), labels and shift_labels (of the next token), and
    `sharded`, the `Deal` of the sequence. Raises `InvalidArgument` as `SequenceParallel.shard`
    does, and for padding elsewhere."""
    if attention_mask is not None:
        with sp._refusals():
            check_padding(attention_mask, input_ids, labels, sp.mask)
    batch = sp.shard(ragged=ragged, input_ids=input_ids, labels=labels, document_ids=document_ids)
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "position_ids": batch["positions"]}
    if labels is not None:
        inputs["labels"] = inputs["shift_labels"] = batch["labels"]
    inputs[_SHARDED] = batch.deal
    return inputs


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
        AttentionInterface.register(self.name, _outside(self._attention))
        AttentionMaskInterface.register(self.name, _outside(self._mask))
        model.set_attn_implementation(self.name)
        self._calls = Calls(model)
        self._hooks = give_longest(model, lambda: self._pass.longest)
        self._own = {name: model.__dict__.get(name) for name in ("_loss_function", "forward")}
        model.loss_function = self._loss_outside
        model.forward = self._around(model.forward)

    @property
    def model_name(self) -> str:
        return type(self.model).__name__

    def uninstall(self) -> None:
        """Restores the attention, the masks and the loss that the model had."""
        self.is_installed = False
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for config, implementation in self._before.values():
            config._attn_implementation_internal = implementation
        for name, before in self._own.items():
            given = self.model.__dict__.get(name)
            if given is not None and self._is_own(given):
                self.model.__dict__.pop(name)
                if before is not None:
                    self.model.__dict__[name] = before
        for registry in (AttentionInterface, AttentionMaskInterface):
            registry._global_mapping.pop(self.name, None)

    def _is_own(self, given: Any) -> bool:
        # Functions that others wrapped around it since stay, and pass calls on.
        return getattr(given, "__self__", None) is self or getattr(given, "installation", None) is self

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
            given = before({**dict(zip(names, args, strict=False)), **kwargs})
            try:
                outputs = forward(**given)
                after(given, outputs)
            finally:
                end()
            return outputs

        checked.installation = self  # type: ignore[attr-defined]
        outside = _outside(checked, recursive=False)
        outside.installation = self  # type: ignore[attr-defined]
        return outside

    def _begin(self, given: dict[str, Any]) -> dict[str, Any]:
        with self.sp._refusals():
            return self._inputs(given)

    def _check(self, given: dict[str, Any], outputs: Any) -> None:
        with self.sp._refusals():
            self._calls.check(self._pass.called)
            tokens = _tokens(given)
            labelled = given.get("labels") is not None
            check_outputs(outputs, tuple(tokens.shape[:2]), losses=self._pass.losses, labelled=labelled)

    def _end(self) -> None:
        self._pass.sequence = self._pass.longest = None

    def _inputs(self, given: dict[str, Any]) -> dict[str, Any]:
        """Inputs of the model, by name, of a call as the caller makes it."""
        sharded = given.pop(_SHARDED, None)
        tokens = _tokens(given)
        if sharded is None:
            refuse_unsharded(self.model_name)
        check_deal("armillary.hf", sharded, self.sp._own_deal)
        check_attention(self.model, self.name)
        if not self._is_trusted:
            check_additions(self.model)
        refuse_inputs(given)
        given["position_ids"] = self._position_ids(given.get("position_ids"), tokens, sharded)
        shift_labels = given.pop("shift_labels", None)
        if shift_labels is not None:
            given["labels"] = shift_labels
        given["use_cache"] = False
        now = self._pass
        now.sequence, now.step, now.losses, now.called = sharded, next(self._steps), 0, set()
        return given

    def _position_ids(self, given: Tensor | None, tokens: Tensor, sharded: Deal) -> Tensor:
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
                f"armillary.hf: {tokens.shape[1]} tokens on rank {self.sp.rank}; layout {self.sp.layout} "
                f"gives it {len(allowed[0])} of {sharded.seq_len}: the batch that armillary.hf.shard returns "
                "is required"
            )
        if given is None:
            given = allowed[0].to(tokens.device).expand(tokens.shape[0], -1)
        same = [at for at, one in enumerate(allowed) if bool((given.cpu() == one).all())]
        if not same:
            first = int((given.cpu() != allowed[0]).expand(tokens.shape[0], -1).nonzero()[0][1])
            raise InvalidArgument(
                f"armillary.hf: position_ids of rank {self.sp.rank} are {given[..., first].tolist()} at "
                f"token {first}; layout {self.sp.layout} and mask {str(sharded.mask)[:80]} have "
                f"{int(allowed[0][first])} there: those, or none, are required"
            )
        self._pass.longest = longest[same[0]]
        return given

    def _check_tokens(self, sharded: Deal) -> None:
        """Raises `InvalidArgument`, on all ranks alike, if one has no token: transformers fails there."""
        for rank, index in enumerate(self.sp._positions_of_ranks(sharded.seq_len, sharded.mask)):
            if not len(index):
                raise InvalidArgument(
                    f"armillary.hf: layout {self.sp.layout} gives rank {rank} none of {sharded.seq_len} "
                    "tokens; one for each rank is required"
                )

    def _mask(self, q_length: int, kv_length: int, **given: Any) -> DeclaredMask:
        with self.sp._refusals():
            return self._declared(q_length, kv_length, given)

    def _declared(self, q_length: int, kv_length: int, given: dict[str, Any]) -> DeclaredMask:
        sequence = self._pass.sequence
        if sequence is None:
            raise InvalidArgument(
                f"armillary.hf: a part of {self.model_name} is called by itself; the whole model that "
                "install was given is required"
            )
        offsets = (given.get("q_offset", 0), given.get("kv_offset", 0))
        if q_length != kv_length or any(offset is not None and offset != 0 for offset in offsets):
            raise InvalidArgument(
                f"armillary.hf: a mask of {q_length} queries over {kv_length} keys at offsets {offsets}; as "
                "many keys as queries are required: neither cross-attention nor a cache"
            )
        if given.get("attention_mask") is not None:
            raise InvalidArgument(
                f"armillary.hf: {self.model_name} makes an attention_mask for the tokens of a rank; "
                "a model that makes none is required"
            )
        model = model_mask_of(given["mask_function"])
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
        **given: Any,
    ) -> tuple[Tensor, None]:
        given |= {"attention_mask": attention_mask, "dropout_seed": self._dropout_seed, "origin": self}
        out = attend(self.sp, module, (query, key, value), given)
        if self._pass.sequence is not None:  # in backward, checkpointed layers call it outside of a pass
            self._pass.called.add(id(module))
        return out

    def _loss_outside(self, *args: Any, **given: Any) -> Tensor:
        loss: Tensor = _outside(self._loss)(*args, **given)
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


def install(
    model: nn.Module,
    sp: SequenceParallel,
    *,
    check: Mapping[str, Tensor | None] | Literal[False] | None = None,
    untested: bool = False,
    dropout_seed: int = 0,
) -> Installation:
    """Gives a model of transformers attention over the ranks of `sp`. Collective with `check`.

    Call the model with the batch that `shard` returns; `.loss` is then that of one device, with the
    convention of `SequenceParallel.loss` for its gradient, and logits are those of this rank's tokens. The
    mask of every layer is the declared one, within the layer's sliding window. DDP and FSDP2 may be put
    around the model afterwards, LoRA of PEFT before or afterwards.

    check: one batch of whole sequences, the same on all ranks, as `armillary.check` takes it. The first rows
      and tokens of it are compared with one device before anything is installed: loss, gradients and outputs.
      Without it a warning says so, on rank 0 of several; False for neither.
    untested: also a model of a family that is neither in `FAMILIES` nor in `REFUSED`, and one that was
      altered; compare it with one device first. dropout_seed: seed of the dropout of attention, the same on
      all ranks.

    Returns the installation, which `uninstall` ends. Raises `InvalidArgument` for a model that is installed
    already, of another family or class, or with layers that are no attention, such as recurrent ones, and
    for one that `check` finds to differ. A forward pass raises it for what cannot be honoured: a batch that
    is not from `shard`, caches, masks that are not declared, attention probabilities, labels that are not
    shifted, positions of another layout, and layers or a loss that are computed without the other ranks."""
    base = base_model(model)
    if not isinstance(base, PreTrainedModel):
        raise InvalidArgument(
            f"install: model is a {type(model).__name__}; a PreTrainedModel of transformers is required: "
            "wrap it with DDP afterwards"
        )
    if any(str(config._attn_implementation).startswith("armillary_") for config in configs_of(base)):
        raise InvalidArgument("install: the model is installed already; uninstall it first")
    check_family(base, untested=untested)
    if not untested:
        check_additions(base)
    report = None
    if check:
        from armillary._check import check_first

        report = check_first(model, check, sp)
    elif check is None and sp.rank == 0 and sp.world > 1:
        warnings.warn(
            f"armillary.hf.install: {type(base).__name__} was not compared with one device; "
            "hf.install(model, sp, check=batch), with a batch of whole sequences, does so before training",
            stacklevel=2,
        )
    installation = Installation(base, sp, dropout_seed, untested)
    installation.report = report
    left_out = [
        type(module).__name__
        for module in base.modules()
        if isinstance(module, PreTrainedModel) and module.config._attn_implementation != installation.name
    ]
    if left_out:
        installation.uninstall()
        raise InvalidArgument(
            f"install: {left_out[0]} does not take its attention from the AttentionInterface of "
            "transformers; a model that does is required"
        )
    return installation


def _outside(function: Callable[..., Any], *, recursive: bool = True) -> Callable[..., Any]:
    """The function, outside of the graphs of torch.compile."""
    disable: Callable[..., Any] = torch.compiler.disable
    outside: Callable[..., Any] = disable(function, recursive=recursive, reason=_OUTSIDE)
    return outside


def _tokens(given: Mapping[str, Any]) -> Tensor:
    tokens = given.get("input_ids")
    tokens = given.get("inputs_embeds") if tokens is None else tokens
    if not isinstance(tokens, Tensor):
        raise InvalidArgument("armillary.hf: no input_ids and no inputs_embeds; one of them is required")
    return tokens
