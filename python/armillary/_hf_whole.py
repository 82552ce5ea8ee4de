"""Whole batches of the Trainer of transformers, the same on all ranks, and a model that spreads them.

    DataLoader --whole batch--> SpreadModel --shards--> model over ranks --shards--> whole outputs

The Trainer then computes what it computes in one process: order, counts, losses, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import recursively_apply
from torch import Tensor, nn

from armillary._deal import Deal
from armillary._groups import gather_over_ranks
from armillary._hf_families import POSITIONS_UNREAD
from armillary.errors import InvalidArgument
from armillary.hf import shard
from armillary.sequence_parallel import SequenceParallel

_COLUMNS = ("input_ids", "labels", "document_ids", "attention_mask")
_READ = (*_COLUMNS, "position_ids")
_PASSED = frozenset({"num_items_in_batch", "output_hidden_states"})
_OUTPUTS = frozenset({"loss", "logits", "hidden_states"})


class OneReader(Accelerator):
    """An accelerator whose ranks all read every batch, as one process does: nothing to deal or to gather."""

    @property
    def num_processes(self) -> int:
        """Readers of the data."""
        return 1

    @property
    def process_index(self) -> int:
        """The number of the reader."""
        return 0

    def gather(self, tensor: Any) -> Any:
        """The argument: every rank has all of it."""
        return tensor

    def pad_across_processes(self, tensor: Any, *_: object, **__: object) -> Any:
        """The argument: it has one size on all ranks."""
        return tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """The argument, without what the last batch repeats, as accelerate has it in one process."""
        rest = self.gradient_state.remainder
        if not self.gradient_state.end_of_dataloader or rest <= 0:
            return input_data
        try:
            return recursively_apply(lambda one: one[:rest], input_data, error_on_other_type=True)
        except TypeError:
            return input_data[:rest]

    def unwrap_model(self, model: Any, *args: Any, **settings: Any) -> Any:
        """The model of transformers within."""
        inner = model.model if isinstance(model, SpreadModel) else model
        return super().unwrap_model(inner, *args, **settings)


class _OneReaderState:
    """The state of a process, as arguments of training see it, with one reader of data."""

    num_processes = 1

    def __init__(self, state: Any, settings: dict[str, int]) -> None:
        self._state = state
        self.__dict__.update(settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


@contextmanager
def one_reader(args: Any, **settings: int) -> Iterator[None]:
    """Within it `args.world_size` is 1: the number of readers, which code of transformers means by it."""
    before = args.distributed_state
    args.distributed_state = _OneReaderState(before, settings)
    try:
        yield
    finally:
        args.distributed_state = before


class SpreadModel:
    """A model over ranks that is called with whole batches, as one device calls it.

    Gradients follow the convention of DDP: the mean over ranks is that of one device, for whatever all ranks
    compute alike from the outputs. Logits are gathered if `gathers`, and are otherwise those of the shard.
    Logits at padding are NaN."""

    def __init__(self, model: nn.Module, sp: SequenceParallel, *, gathers: bool, family: str) -> None:
        self.model = model
        self._sp = sp
        self._gathers = gathers
        self._family = family

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *unnamed: Any, **inputs: Any) -> Any:
        """Outputs of the whole batch."""
        as_tuple = inputs.pop("return_dict", None) is False
        with self._sp._refusals():
            if unnamed:
                raise InvalidArgument(
                    "Trainer: the model is called with inputs without names; model(input_ids=.., ..) is "
                    "required"
                )
            whole = whole_columns(inputs, self._family)
            others = {name: value for name, value in inputs.items() if name not in _READ}
            _check_others(others)
        shards = shard(self._sp, ragged="uneven", **whole)
        outputs = self.model(**shards, **others)
        if outputs.get("loss") is not None and others.get("num_items_in_batch") is not None:
            outputs["loss"] = _sum_of_ranks(self._sp, outputs["loss"])
        if self._gathers:
            padding = _padding(whole)
            for name, value in list(outputs.items()):
                outputs[name] = self._whole(name, value, shards["sharded"], padding)
        return outputs.to_tuple() if as_tuple else outputs

    def _whole(self, name: str, value: Any, deal: Deal, padding: Tensor | None) -> Any:
        if name not in _OUTPUTS:
            raise InvalidArgument(
                f"Trainer: outputs of the model have {name}; none but {', '.join(sorted(_OUTPUTS))} can be "
                "gathered"
            )
        if name == "loss" or value is None:
            return value
        if isinstance(value, tuple):
            return tuple(self._whole(name, one, deal, padding) for one in value)
        whole = self._sp.unshard(value, dim=1, deal=deal)
        return whole if padding is None else whole.masked_fill(padding[..., None], torch.nan)


def _check_others(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in _PASSED and value is not None and value is not False:
            raise InvalidArgument(
                f"Trainer: a batch has {name}; none but {', '.join(_READ)} can be spread over ranks"
            )


def _sum_of_ranks(sp: SequenceParallel, share: Tensor) -> Tensor:
    """The sum of the shares of all ranks, with the gradient of this rank's, in the convention of the mean."""
    shares = gather_over_ranks(share.detach().double(), sp.group_name, sp.timeout_s)
    scaled = share * sp.world
    total: Tensor = scaled + (shares.sum(0).to(share.dtype) - scaled.detach())
    return total


def whole_columns(inputs: Mapping[str, Any], family: str) -> dict[str, Tensor]:
    """The columns of a whole batch that `hf.shard` takes; documents of position_ids become document_ids.

    Raises `InvalidArgument` for positions that do not count in documents, and for documents that one process
    would not keep apart in a model of this family."""
    tokens = inputs.get("input_ids")
    if not isinstance(tokens, Tensor) or tokens.dim() != 2:
        raise InvalidArgument("Trainer: a batch without input_ids [B, S]; whole sequences are required")
    whole = {name: inputs[name] for name in _COLUMNS if inputs.get(name) is not None}
    positions = inputs.get("position_ids")
    if positions is None:
        return whole
    for name in ("position_ids", "document_ids"):
        _check_shape(name, inputs.get(name), tokens)
    place = torch.arange(positions.shape[-1])
    starts = _starts(inputs["document_ids"]) if "document_ids" in whole else positions == 0
    begins = torch.where(starts, place, 0).cummax(-1).values
    if not torch.equal(positions.expand_as(begins), place - begins):
        raise InvalidArgument(
            "Trainer: position_ids of a batch do not count from 0 in each document; those, or none, are "
            "required"
        )
    documents = starts.cumsum(-1) - 1
    if "document_ids" not in whole and bool((documents > 0).any()):
        _check_read(inputs, family)
        whole["document_ids"] = documents.expand(tokens.shape[0], -1)
    return whole


def _check_shape(name: str, value: Any, tokens: Tensor) -> None:
    """Raises `InvalidArgument` unless it is [S], [1, S] or [B, S] for tokens [B, S]."""
    sizes = tuple(value.shape) if isinstance(value, Tensor) else None
    batch, length = tokens.shape
    if value is not None and sizes not in {(length,), (1, length), (batch, length)}:
        shape = list(sizes) if sizes is not None else type(value).__name__
        raise InvalidArgument(
            f"Trainer: {name} {shape} of tokens {list(tokens.shape)}; one of each token is required"
        )


def _starts(documents: Tensor) -> Tensor:
    """True where a document begins."""
    return torch.diff(documents, dim=-1, prepend=documents[..., :1] - 1) != 0


def _check_read(inputs: Mapping[str, Any], family: str) -> None:
    """Raises `InvalidArgument` if one process would let documents attend to each other."""
    why = "it has an attention_mask" if inputs.get("attention_mask") is not None else ""
    if family in POSITIONS_UNREAD:
        why = f"{family} does not read documents out of them"
    if why:
        raise InvalidArgument(
            f"Trainer: position_ids of a batch begin again, and {why}, so one process lets documents attend "
            "to each other; document_ids, such as those of armillary.hf.pack, are required"
        )


def _padding(whole: Mapping[str, Tensor]) -> Tensor | None:
    """True [B, S] where there is no token, or None."""
    shown = whole.get("attention_mask")
    return None if shown is None or bool((shown != 0).all()) else shown == 0
