"""From masks that are seen pair by pair to bands: rectangles of queries and keys between two diagonals.

A band over queries [q0, q1) shows to query q the keys from max(k0, q + lo) up to min(k1, q + hi + 1): its
begin stays, then moves by one a query; its end moves by one a query, then stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from armillary._texts import count_of
from armillary.errors import InvalidArgument

Strip = tuple[int, Tensor]  # the first query, and [rows, S] bool: the keys that these queries see
_ROWS = 256  # of a strip of a dense mask


class _Band:
    """A band that grows by a query at a time."""

    def __init__(self, q: int, begin: int, end: int) -> None:
        self.q_begin = self.q_last = q
        self.k_begin, self.begin = begin, begin
        self.first_end = self.end = end
        self.begin_moves = False
        self.end_moved = False
        self.end_stays = False

    def takes(self, q: int, begin: int, end: int) -> bool:
        """Grows by a query that sees [begin, end), or returns False."""
        moved = begin - self.begin, end - self.end
        if q != self.q_last + 1 or moved[0] not in (0, 1) or moved[1] not in (0, 1):
            return False
        if (self.begin_moves and moved[0] == 0) or (self.end_stays and moved[1] == 1):
            return False
        self.begin_moves |= moved[0] == 1
        self.end_moved |= moved[1] == 1
        self.end_stays |= moved[1] == 0
        self.q_last, self.begin, self.end = q, begin, end
        return True

    def __str__(self) -> str:
        lo = str(self.begin - self.q_last) if self.begin_moves else ""
        hi = str(self.first_end - 1 - self.q_begin) if self.end_moved else ""
        return f"{self.q_begin}-{self.q_last + 1}/{self.k_begin}-{self.end}/{lo}..{hi}"


def _intervals(strip: Tensor) -> list[list[tuple[int, int]]]:
    """For each row the intervals of keys that it sees."""
    edge = torch.zeros(len(strip), 1, dtype=torch.bool)
    changes = torch.cat([edge, strip], 1) != torch.cat([strip, edge], 1)
    rows: list[list[tuple[int, int]]] = [[] for _ in range(len(strip))]
    # Changes of a row come in order: begin, end, begin, end.
    places = changes.nonzero().tolist()
    for (row, begin), (_, end) in zip(places[::2], places[1::2], strict=True):
        rows[row].append((begin, end))
    return rows


def bands_of(strips: Iterator[Strip], most_bands: int, name: str) -> str:
    """The bands whose union is the mask, as `armillary plan --mask bands:..` reads them.

    Raises `InvalidArgument` with the first position that the first `most_bands` bands do not show."""
    bands: list[_Band] = []
    growing: list[_Band] = []
    for first, strip in strips:
        for q, intervals in enumerate(_intervals(strip), first):
            before, growing = growing, []
            for begin, end in intervals:
                band = next((one for one in before if one.takes(q, begin, end)), None)
                if band is None:
                    if len(bands) == most_bands:
                        raise InvalidArgument(
                            f"{name}: query {q}, key {begin} is not in the {most_bands} bands before it; a "
                            f"union of {most_bands} bands is required, or a larger most_bands"
                        )
                    band = _Band(q, begin, end)
                    bands.append(band)
                else:
                    before.remove(band)
                growing.append(band)
    return "bands:" + (";".join(map(str, bands)) or "0-0/0-0/0..0")  # an empty band shows nothing


def _one_for_all(mask: Tensor, name: str) -> Tensor:
    """[S, S] of a mask [.., S, S] that is the same for all batch entries and heads."""
    one = mask.reshape(-1, *mask.shape[-2:])
    for other in one[1:]:
        if not torch.equal(one[0], other):
            q, k = (one[0] != other).nonzero()[0].tolist()
            raise InvalidArgument(
                f"{name}: query {q}, key {k} differs between batch entries or heads; one mask for all is "
                "required"
            )
    return one[0]


def dense_strips(mask: Tensor, name: str) -> Iterator[Strip]:
    """Strips of a dense mask [S, S], or [.., S, S] with one mask for all. Raises `InvalidArgument` for
    others."""
    square = mask.dim() >= 2 and mask.shape[-1] == mask.shape[-2] and mask.shape[-1] > 0
    if mask.dtype != torch.bool or mask.is_meta or not square:
        raise InvalidArgument(
            f"{name}: {mask.dtype} {list(mask.shape)} on {mask.device}; torch.bool [S, S], True for a "
            "pair that is seen, is required, or a mask of armillary.masks"
        )
    one = _one_for_all(mask, name).cpu()
    return ((q, one[q : q + _ROWS]) for q in range(0, len(one), _ROWS))


def block_strips(mask: BlockMask, name: str) -> Iterator[Strip]:
    """Strips of a BlockMask: blocks that are full are taken as they are, in partial ones each pair is
    asked for. Raises `InvalidArgument` if it differs between batch entries or heads."""
    q_len, kv_len = mask.seq_lengths
    if q_len != kv_len or q_len == 0:
        raise InvalidArgument(
            f"{name}: {count_of(q_len, 'query', 'queries')} and {count_of(kv_len, 'key')}; a "
            "square mask is required, one sequence"
        )
    for batch in range(mask.shape[0]):
        for head in range(mask.shape[1]):
            if (batch, head) != (0, 0):
                _same(mask, (batch, head), name)
    return _strips_at(mask, (0, 0))


def _same(mask: BlockMask, at: tuple[int, int], name: str) -> None:
    for (q, first), (_, other) in zip(_strips_at(mask, (0, 0)), _strips_at(mask, at), strict=True):
        if not torch.equal(first, other):
            row, k = (first != other).nonzero()[0].tolist()
            raise InvalidArgument(
                f"{name}: query {q + row}, key {k} differs between batch entries or heads; one mask for all "
                "is required"
            )


def _strips_at(mask: BlockMask, at: tuple[int, int]) -> Iterator[Strip]:
    """The mask of one batch entry and head, a row of blocks at a time."""
    q_len, kv_len = mask.seq_lengths
    rows, columns = mask.BLOCK_SIZE
    for block, q in enumerate(range(0, q_len, rows)):
        strip = torch.zeros(min(rows, q_len - q), kv_len, dtype=torch.bool)
        for k_block in _listed(mask.full_kv_num_blocks, mask.full_kv_indices, at, block):
            strip[:, k_block * columns : (k_block + 1) * columns] = True
        for k_block in _listed(mask.kv_num_blocks, mask.kv_indices, at, block):
            k = k_block * columns
            part = strip[:, k : k + columns]
            part.copy_(_asked(mask.mask_mod, at, (q, k), (part.shape[0], part.shape[1])))
        yield q, strip


def _listed(count: Tensor | None, indices: Tensor | None, at: tuple[int, int], block: int) -> list[int]:
    """The blocks of keys that a BlockMask lists for a block of queries."""
    if count is None or indices is None:
        return []
    return [int(i) for i in indices[at][block][: int(count[at][block])]]


def _asked(
    mask_mod: Callable[..., Tensor], at: tuple[int, int], begin: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Asks a mask_mod of flex_attention for a rectangle of pairs."""
    q = torch.arange(begin[0], begin[0] + size[0]).unsqueeze(1)
    k = torch.arange(begin[1], begin[1] + size[1]).unsqueeze(0)
    return mask_mod(torch.tensor(at[0]), torch.tensor(at[1]), q, k).expand(size)
