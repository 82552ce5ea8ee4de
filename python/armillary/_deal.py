"""Which tokens of which sequence a rank was given: what a shard knows about itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from armillary.errors import InvalidArgument
from armillary.masks import Mask


def unknown_digest() -> Tensor:
    """The digest of a sequence whose numbers are not known."""
    return torch.zeros((), dtype=torch.int64)


@dataclass(frozen=True)
class Deal:
    """The part of a sequence that a rank holds; `SequenceParallel.shard` and `deal` make it.

    mask, seq_len: of the whole sequence. layout, world, part: the tokens are those that the layout gives to
    rank `part` of `world`, under this mask. digest: of the numbers of the whole sequence, 0 if they are not
    known; ranks compare it in the calls that they make anyway. Picklable."""

    mask: Mask
    seq_len: int
    layout: str
    world: int
    part: int
    digest: Tensor = field(default_factory=unknown_digest, compare=False, repr=False)


def check_deal(where: str, deal: object, expected: Deal) -> Deal:
    """Returns `deal`. Raises `InvalidArgument` unless it is one of the layout and the place of `expected`."""
    if not isinstance(deal, Deal):
        raise InvalidArgument(
            f"{where}: deal is a {type(deal).__name__}; that of a batch, batch.deal, or sp.deal(seq_len) is "
            "required"
        )
    if (deal.layout, deal.world, deal.part) != (expected.layout, expected.world, expected.part):
        raise InvalidArgument(
            f"{where}: the tokens were dealt as part {deal.part} of {deal.world} by layout {deal.layout}, "
            f"this SequenceParallel has part {expected.part} of {expected.world} and layout "
            f"{expected.layout}; tokens that it dealt itself are required"
        )
    return deal


def check_digests(where: str, rank: int, mine: int, other: int, theirs: int) -> None:
    """Raises `InvalidArgument` if two ranks know their sequences, and they are not the same."""
    if 0 not in (mine, theirs) and mine != theirs:
        raise InvalidArgument(
            f"{where}: rank {rank} holds tokens of sequence #{mine % 2**64:016x}, rank {other} of "
            f"#{theirs % 2**64:016x}; the same whole sequence on all ranks, sharded once, is required"
        )


# Marks are kept by storage: views, slices and detached tensors of a shard have that of the shard.
_marks: dict[int, tuple[StorageWeakRef, Deal]] = {}


def mark(shard: Tensor, deal: Deal) -> None:
    """Remembers the deal of a shard, for as long as its memory lives."""
    if torch.compiler.is_compiling():
        return
    lengths_dealt(deal.layout, deal.world).add(deal.seq_len)
    for key, (storage, _) in list(_marks.items()):
        if storage.expired():  # type: ignore[no-untyped-call]
            _marks.pop(key, None)
    reference = StorageWeakRef(shard.untyped_storage())  # type: ignore[no-untyped-call]
    _marks[shard.untyped_storage()._cdata] = reference, deal


def deal_of(tensor: Tensor) -> Deal | None:
    """The deal of a shard or of a view of one; None for other tensors."""
    if torch.compiler.is_compiling():
        return None
    try:
        known = _marks.get(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a tensor without memory of its own
        return None
    if known is None or known[0].expired():  # type: ignore[no-untyped-call]
        return None
    return known[1]


_lengths: dict[tuple[str, int], set[int]] = {}


def lengths_dealt(layout: str, world: int) -> set[int]:
    """Lengths of the sequences whose tokens this process was dealt, also by hand or by a worker."""
    return _lengths.setdefault((layout, world), set())


def remember(known: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Makes a value the newest of its cache, which keeps the last few."""
    known.pop(key, None)
    known[key] = value
    # Threads may do so at the same time: the list is a copy, and a key that is gone is no error.
    for oldest in list(known)[:-most]:
        known.pop(oldest, None)


class Dealt(threading.local):
    """Digests of the sequences that this thread sharded last, by group and length.

    Calls of one thread have one order on all ranks; those of two threads have none."""

    _MOST = 64

    def __init__(self) -> None:
        self._digests: dict[tuple[object, int], Tensor] = {}

    def remember(self, group: object, seq_len: int, digest: Tensor) -> None:
        """A digest of 0 forgets the one before: nobody knows what tokens taken by hand are."""
        remember(self._digests, (group, seq_len), digest, self._MOST)

    def digest(self, group: object, seq_len: int) -> Tensor | None:
        """None if no sequence of this length was sharded."""
        return self._digests.get((group, seq_len))


# Odd factors that spread the bits of numbers and places.
_NUMBER, _PLACE, _SPREAD = -7046029254386353131, -4417276706812531889, 6364136223846793005
_SAMPLE = 1 << 22  # numbers of a tensor that is no list of tokens: it may be as large as memory


def digest_of(tensors: Iterable[Tensor]) -> Tensor:
    """[] int64 of shapes and numbers: all whole numbers, or a sample of others."""
    total = unknown_digest()
    for tensor in tensors:
        if tensor.is_meta:
            return unknown_digest()
        total = total * _SPREAD + _digest(tensor.detach()).cpu()
        for size in tensor.shape:
            total = total * _SPREAD + size
    return total


def is_whole(tensor: Tensor) -> bool:
    """Whether its numbers are whole ones, such as tokens."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def _digest(tensor: Tensor) -> Tensor:
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()
    if is_whole(tensor):
        numbers = flat.to(torch.int64)
    else:
        numbers = flat[:: max(1, -(-len(flat) // _SAMPLE))].to(torch.float64).view(torch.int64)
    mixed = numbers * _NUMBER + torch.arange(1, len(numbers) + 1, device=tensor.device) * _PLACE
    mixed = (mixed ^ (mixed >> 32)) * _SPREAD
    return (mixed ^ (mixed >> 29)).sum()
