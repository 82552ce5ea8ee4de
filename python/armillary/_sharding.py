"""From whole sequences to the tokens of a rank, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from armillary._deal import Deal, check_digests, deal_of, digest_of, is_whole, mark
from armillary._groups import gather_over_ranks
from armillary._spread import Spread
from armillary._tensors import check_strided
from armillary._texts import count_of
from armillary.errors import InvalidArgument
from armillary.loss import IGNORED
from armillary.masks import Mask, document_lengths, documents


class ShardedBatch(dict[str, Tensor]):
    """Tensors of one rank by name, with the deal of the whole sequence. Picklable. A tensor that takes the
    place of another of its shape, such as its copy in pinned memory, is a shard too."""

    def __init__(self, tensors: Mapping[str, Tensor], deal: Deal) -> None:
        super().__init__(tensors)
        self.deal = deal
        for tensor in tensors.values():
            mark(tensor, deal)

    @property
    def mask(self) -> Mask:
        return self.deal.mask

    @property
    def seq_len(self) -> int:
        return self.deal.seq_len

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        before = self.get(name)
        super().__setitem__(name, tensor)
        if before is not None and before.shape == tensor.shape:
            mark(tensor, self.deal)

    def update(self, *others: Any, **tensors: Tensor) -> None:
        for name, tensor in dict(*others, **tensors).items():
            self[name] = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        # The tensors of the copy are shards too.
        return ShardedBatch, (dict(self), self.deal)


def _length_of(whole: Mapping[str, Tensor], dim: int) -> int:
    """The length that all tensors have. Raises `InvalidArgument` if they differ, or are sharded already."""
    if not isinstance(dim, int) or dim < 0:
        raise InvalidArgument(f"shard: dim is {dim!r}; 0 or more is required, such as 1 for tensors [B, S]")
    if not whole:
        raise InvalidArgument("shard: no tensor is given; at least one, such as input_ids, is required")
    lengths = {}
    for name, tensor in whole.items():
        check_strided(f"shard: {name}", tensor)
        if (deal := deal_of(tensor)) is not None:
            raise InvalidArgument(
                f"shard: {name} is sharded already, part {deal.part} of {deal.world} of {deal.seq_len} "
                "tokens; the whole sequence is required, shard it once"
            )
        if tensor.dim() <= dim:
            raise InvalidArgument(
                f"shard: {name} has {count_of(tensor.dim(), 'dim')}; tokens in dim {dim} are required"
            )
        lengths[name] = tensor.shape[dim]
    (first, length), *others = lengths.items()
    for name, other in others:
        if other != length:
            raise InvalidArgument(
                f"shard: {name} has {count_of(other, 'token')}, {first} {length}; equal lengths are required"
            )
    return length


def _shifted(labels: Tensor, input_ids: Tensor | None, dim: int) -> Tensor:
    """Labels of the next token. Raises `InvalidArgument` if they are that already."""
    length = labels.shape[dim]
    if (
        input_ids is not None
        and input_ids.shape == labels.shape
        and length > 1
        and not (labels.is_meta or input_ids.is_meta)  # which have no numbers
    ):
        now, following = labels.narrow(dim, 0, length - 1), input_ids.narrow(dim, 1, length - 1)
        labelled = labels != IGNORED
        is_next = bool(((now == following) | ~labelled.narrow(dim, 0, length - 1)).all())
        is_same = bool(((labels == input_ids) | ~labelled).all())
        if is_next and not is_same and bool(labelled.any()):
            raise InvalidArgument(
                "shard: labels are shifted already: each is the next input token; labels of the same "
                "positions as input_ids are required, such as labels=input_ids"
            )
    last = torch.full_like(labels.narrow(dim, 0, min(length, 1)), IGNORED)
    return torch.cat([labels.narrow(dim, min(length, 1), max(length - 1, 0)), last], dim)


def _positions_within(lengths: list[int]) -> Tensor:
    return torch.cat([torch.arange(length) for length in lengths]) if lengths else torch.arange(0)


def shard_batch(sp: Spread, batch: Mapping[str, Tensor | None], *, dim: int, ragged: str) -> ShardedBatch:
    """See `SequenceParallel.shard`."""
    if ragged not in ("refuse", "uneven"):
        raise InvalidArgument(f"shard: ragged is {ragged!r}; 'refuse' or 'uneven' is required")
    whole = {name: tensor for name, tensor in batch.items() if tensor is not None}
    length = _length_of(whole, dim)
    digest = _sequence_digest(whole)
    mask, within = sp.mask, None
    if "document_ids" in whole:
        within = document_lengths(whole["document_ids"])
        mask = mask & documents(within, within="full")
    index = sp.positions(length, mask)
    _check_even(sp, length, mask, ragged)
    if "labels" in whole:
        whole["labels"] = _shifted(whole["labels"], whole.get("input_ids"), dim)
    if "positions" not in whole:
        one = torch.arange(length) if within is None else _positions_within(within)
        first = next(iter(whole.values()))
        whole["positions"] = one.expand(first.shape[0], length) if dim == 1 else one
    shards = {}
    for name, tensor in whole.items():
        at = dim if tensor.dim() > dim else tensor.dim() - 1
        shards[name] = tensor.index_select(at, index.to(tensor.device))
    deal = replace(sp.deal(length, mask), digest=digest)
    sp._remember_dealt(deal)
    return ShardedBatch(shards, deal)


def _sequence_digest(whole: Mapping[str, Tensor]) -> Tensor:
    """The digest of what must be the same on all ranks: tokens and other whole numbers, or the first tensor,
    whose last bits may be those of a machine."""
    numbers = [whole[name] for name in sorted(whole) if is_whole(whole[name])]
    return digest_of(numbers or list(whole.values())[:1])


def _check_even(sp: Spread, length: int, mask: Mask, ragged: str) -> None:
    if ragged == "uneven":
        return
    sizes = sp._sizes_of_ranks(length, mask)
    if max(sizes) == min(sizes):
        return
    pieces = (2 if sp.layout == "zigzag" else 1) * sp.world
    nearest = -(-length // pieces) * pieces
    raise InvalidArgument(
        f"shard: {count_of(length, 'token')} on {sp.world} ranks with layout {sp.layout} are shards of "
        f"{min(sizes)} to {max(sizes)}; equal shards, such as of {nearest} tokens, or "
        "ragged='uneven' is required"
    )


def _gathered(sp: Spread, mine: Tensor) -> Tensor:
    """[world, ..]: the tensors of all ranks."""
    return gather_over_ranks(mine, sp.group_name, sp.timeout_s)


class _Gather(torch.autograd.Function):
    """The tokens of all ranks. Backward takes this rank's part, times a factor."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, sp: Spread, dim: int, places: list[Tensor], factor: int) -> Tensor:
        ctx.place, ctx.dim, ctx.factor = places[sp.rank], dim, factor
        first = tokens.movedim(dim, 0)
        # Shards may differ in size: all are as long as the longest on the way.
        padded = first.new_zeros([max(len(place) for place in places), *first.shape[1:]])
        padded[: len(first)] = first
        whole = first.new_empty([sum(len(place) for place in places), *first.shape[1:]])
        for place, part in zip(places, _gathered(sp, padded), strict=True):
            whole[place] = part[: len(place)]
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        return grads[0].index_select(ctx.dim, ctx.place) * ctx.factor, None, None, None, None


def _check_alike(sp: Spread, tokens: Tensor, dim: int, sequence: str, known: Tensor | None) -> None:
    """Raises `InvalidArgument` on all ranks unless all gather tensors of one kind of one sequence."""
    sizes = [size for at, size in enumerate(tokens.shape) if at != dim]
    kind, sequence_number = (_number(text) for text in (f"{tokens.dtype} {dim} {sizes}", sequence))
    digest = 0 if known is None else int(known)
    for rank, other in enumerate(_gathered(sp, torch.tensor([kind, sequence_number, digest])).tolist()):
        if kind != other[0]:
            raise InvalidArgument(
                f"unshard: rank {sp.rank} has {tokens.dtype} {list(tokens.shape)}, rank {rank} another dtype "
                "or other sizes beside the tokens; equal ones are required"
            )
        if sequence_number != other[1]:
            raise InvalidArgument(
                f"unshard: rank {sp.rank} gathers {sequence}, rank {rank} another sequence; the same seq_len "
                "or deal on all ranks is required"
            )
        check_digests("unshard", sp.rank, digest, rank, other[2])


def _number(text: str) -> int:
    """64 bits that stand for a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def gather_tokens(
    sp: Spread, tokens: Tensor, *, dim: int, seq_len: int | None, deal: Deal | None, reduce: str
) -> Tensor:
    """See `SequenceParallel.unshard`."""
    check_strided("unshard: the argument", tokens)
    if reduce not in ("mean", "sum"):
        raise InvalidArgument(
            f"unshard: reduce is {reduce!r}; 'mean' or 'sum' of gradients over ranks is required"
        )
    if tokens.device.type != "cpu":
        raise InvalidArgument(f"unshard: a tensor on {tokens.device}; one on the CPU is required")
    if not isinstance(dim, int) or not -tokens.dim() <= dim < tokens.dim():
        raise InvalidArgument(f"unshard: {count_of(tokens.dim(), 'dim')}; tokens in dim {dim!r} are required")
    if seq_len is not None and not (isinstance(seq_len, int) and 0 <= seq_len < 2**63):
        raise InvalidArgument(f"unshard: seq_len is {seq_len!r}; a number of tokens is required")
    dim %= tokens.dim()
    known = deal_of(tokens) if deal is None else deal
    mask, length = sp._dealt("unshard", None, seq_len, tokens, known, dim)
    places = sp._positions_of_ranks(length, mask)
    mine = len(places[sp.rank])
    if mine != tokens.shape[dim]:
        raise InvalidArgument(
            f"unshard: {count_of(tokens.shape[dim], 'token')} on rank {sp.rank}; layout {sp.layout} gives it "
            f"{mine} of {length}: those, or another seq_len, are required"
        )
    _check_alike(sp, tokens, dim, f"{length} tokens of layout {sp.layout}", sp._digest(deal, tokens, length))
    factor = sp.world if reduce == "mean" else 1
    whole: Tensor = _Gather.apply(tokens, sp, dim, places, factor)  # type: ignore[no-untyped-call]
    return whole
