"""Masks: which keys a query sees, by global positions, never by an S x S matrix.

    masks.causal() & masks.window(left=4095, right=0)
    masks.documents([1000, 3096])            # packed, each causal
    masks.parse("prefix:128")                # as on the command line
    masks.from_block_mask(block_mask)        # of flex_attention
    masks.from_dense(seen_SS)                # True for a pair that is seen

A mask here has no length: it is applied to the sequence of each call. It is exact or refused; it is never
replaced by a similar one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from armillary import _native
from armillary._bands import bands_of, block_strips, dense_strips
from armillary.errors import InvalidArgument

Within = Literal["causal", "full"]
_NAMES = ("full", "causal", "window", "prefix", "block_causal", "documents", "bands")


class Mask:
    """A mask without a length: texts as `armillary plan --mask` reads them, and what all of them show.

    `a & b` shows what both show. Immutable."""

    def __init__(self, texts: tuple[str, ...], length: int | None = None) -> None:
        self._texts = texts
        self._at: dict[tuple[int, int | None], str] = {}
        #: Length of the sequence, if the mask has one: that of documents.
        self.length = length

    def at(self, seq_len: int, kv_seq_len: int | None = None) -> _native.Mask:
        """The mask over a sequence of this length, and keys of another sequence if they have one.

        Raises `InvalidArgument` if the mask cannot have it, such as documents of another sum."""
        first, *others = (
            _native.Mask(text, seq_len, seq_len if kv_seq_len is None else kv_seq_len) for text in self._texts
        )
        for other in others:
            first = first.intersect(other)
        return first

    def text_at(self, seq_len: int, kv_seq_len: int | None = None) -> str:
        """One text for the mask over a sequence of this length, and keys of another if they have one."""
        if len(self._texts) == 1:
            return self._texts[0]
        lengths = (seq_len, kv_seq_len)
        if lengths not in self._at:
            self._at[lengths] = self.at(*lengths).text()
        return self._at[lengths]

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        if self.length is not None and other.length is not None and self.length != other.length:
            raise InvalidArgument(
                f"masks: documents of {self.length} and of {other.length} tokens; equal lengths are required"
            )
        texts = self._texts + tuple(text for text in other._texts if text not in self._texts)
        # Showing everything changes nothing.
        some = tuple(text for text in texts if text != "full")
        return Mask(some or ("full",), self.length if self.length is not None else other.length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self._texts == other._texts

    def __hash__(self) -> int:
        return hash(self._texts)

    def __str__(self) -> str:
        return " & ".join(self._texts)

    def __repr__(self) -> str:
        return f"<armillary.masks.Mask {self}>"


def as_mask(mask: object) -> Mask:
    """A mask from a mask, a text, a BlockMask or a dense boolean tensor. Raises `InvalidArgument` for
    anything else."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, str):
        return parse(mask)
    if isinstance(mask, BlockMask):
        return from_block_mask(mask)
    if isinstance(mask, Tensor):
        return from_dense(mask)
    raise InvalidArgument(
        f"mask: a {type(mask).__name__} is given; a text such as 'causal', an object of armillary.masks, a "
        "BlockMask or a boolean tensor [S, S] is required"
    )


def from_dense(seen: Tensor, *, most_bands: int = 1024) -> Mask:
    """The mask of a boolean tensor [S, S], or [.., S, S] with one mask for all batch entries and heads; True
    for a pair that is seen, as scaled_dot_product_attention wants it.

    The mask is kept as bands, `most_bands` at most. Raises `InvalidArgument` otherwise, with the first
    position that is not in so many."""
    text = bands_of(dense_strips(seen, "masks.from_dense"), most_bands, "masks.from_dense")
    return Mask((text,), seen.shape[-1])


def from_block_mask(block_mask: BlockMask, *, most_bands: int = 1024) -> Mask:
    """The mask of a BlockMask of flex_attention, the same for all batch entries and heads; its mask_mod is
    asked about every pair of the partial blocks.

    Kept and refused as by `from_dense`. Time: that of a row of blocks at a time, S x S in all."""
    name = "masks.from_block_mask"
    text = bands_of(block_strips(block_mask, name), most_bands, name)
    return Mask((text,), int(block_mask.seq_lengths[0]))


def parse(text: str) -> Mask:
    """A mask as on the command line: ``causal``, ``window:left=1023,right=0``, ``documents:10,20``,
    ``bands:..``.

    Raises `InvalidArgument` for the name of no mask, with the nearest; for wrong numbers when it is applied
    to a sequence."""
    if not text.isascii():
        raise InvalidArgument(f"mask: {text!r} is given; ASCII is required, such as 'causal'")
    if text.partition(":")[0] not in _NAMES:
        _native.Mask(text, 1, 1)  # raises, with the nearest name
    length = None
    if text.startswith("documents:"):
        numbers = text.removeprefix("documents:").split(",")
        length = sum(int(number) for number in numbers if number.isdecimal())
    return Mask((text,), length)


def full() -> Mask:
    """Every query sees every key."""
    return Mask(("full",))


def causal() -> Mask:
    """A query sees the keys up to its own position."""
    return Mask(("causal",))


def window(left: int, right: int = 0) -> Mask:
    """A query sees so many keys to the left and to the right of its own position, and its own."""
    return Mask((f"window:left={left},right={right}",))


def prefix(tokens: int) -> Mask:
    """The first keys are visible to all queries, the rest causally."""
    return Mask((f"prefix:{tokens}",))


def block_causal(block: int) -> Mask:
    """Queries of a block of so many tokens see the keys of their own block and of those before it."""
    return Mask((f"block_causal:{block}",))


def documents(lengths: Sequence[int], within: Within = "causal") -> Mask:
    """Packed documents of these lengths, one after the other; each attends to itself only."""
    numbers = [int(length) for length in lengths]
    return Mask((f"documents:{','.join(map(str, numbers))},within={within}",), sum(numbers))


def document_lengths(document_ids: Tensor) -> list[int]:
    """Lengths of packed documents from an id for every token, [S] or [B, S], the same for all batch
    entries."""
    if document_ids.is_floating_point() or document_ids.is_complex() or document_ids.is_meta:
        raise InvalidArgument(
            f"document_ids: {document_ids.dtype} on {document_ids.device}; whole numbers are required"
        )
    rows = document_ids if document_ids.dim() == 2 else document_ids.unsqueeze(0)
    if document_ids.dim() not in (1, 2) or not bool((rows == rows[:1]).all()):
        raise InvalidArgument(
            f"document_ids {list(document_ids.shape)}: documents differ between batch entries, or dims are "
            "not 1 or 2; the same documents for all are required, such as one row of packed documents"
        )
    ids, lengths = torch.unique_consecutive(rows[0], return_counts=True)
    if len(torch.unique(ids)) != len(ids):
        raise InvalidArgument(
            "document_ids: a document is not in one piece; neighbours of one id are required"
        )
    return [int(length) for length in lengths]


def documents_of(cu_seqlens: Tensor, within: Mask) -> Mask:
    """Packed documents that begin at cu_seqlens [n + 1], and end at the next; `within` holds in each."""
    is_list = cu_seqlens.dim() == 1 and len(cu_seqlens) >= 2
    if not is_list or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(
            f"cu_seqlens: {cu_seqlens.dtype} {list(cu_seqlens.shape)}; int32 or int64 [documents + 1] is "
            "required"
        )
    begins = cu_seqlens.tolist()
    if begins[0] != 0 or any(end < begin for begin, end in zip(begins, begins[1:], strict=False)):
        raise InvalidArgument(
            f"cu_seqlens: begins with {begins[:4]}..; 0 and then ascending ends are required"
        )
    lengths = [end - begin for begin, end in zip(begins, begins[1:], strict=False)]
    return within & documents(lengths, within="full")


def packed_lengths(mask: Mask) -> list[int]:
    """Lengths of the packed documents of a mask; empty if it has none."""
    ends: set[int] = set()
    for text in str(mask).split(" & "):
        if text.startswith("documents:"):
            numbers = text.removeprefix("documents:").split(",")
            ends |= set(itertools.accumulate(int(number) for number in numbers if number.isdecimal()))
    edges = [0, *sorted(ends - {0})]
    return [end - begin for begin, end in itertools.pairwise(edges)]


def check_causality(declared: Mask, is_causal: bool, seq_len: int, caller: str) -> None:
    """Raises `InvalidArgument` unless the declared mask shows later keys just if the caller's does."""
    area = declared.at(seq_len).area()
    declared_is_causal = (declared & causal()).at(seq_len).area() == area
    if declared_is_causal == is_causal or area <= seq_len:
        return
    of_caller, nearest = ("causal", "causal") if is_causal else ("bidirectional", "full")
    shows = "no later keys" if declared_is_causal else "later keys"
    raise InvalidArgument(
        f"mask: {caller} is {of_caller}, and the declared mask {str(declared)[:80]} shows {shows}; a mask "
        f"that agrees is required, such as SequenceParallel(mask={nearest!r})"
    )
