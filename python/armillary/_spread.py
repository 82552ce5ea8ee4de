"""How sequences are spread over the ranks of a group, and what every call over them has to know."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from armillary import _native
from armillary._deal import Deal, Dealt, check_deal, deal_of, lengths_dealt, remember
from armillary._groups import Group, leave_at_its_end, process_group
from armillary._options import AnyMask, Options
from armillary._texts import count_of
from armillary.errors import Error, InvalidArgument
from armillary.masks import Mask, as_mask, documents_of

_DEFAULT_TIMEOUT_S = 60.0
Runs = list[tuple[int, int, int, int]]  # strided: begin, count, step, width
_dealers: dict[tuple[str, int], str] = {}  # layout that dealt tokens last, in each group
_dealt = Dealt()
_REMEMBERED = 16  # masks of documents


class Spread:
    """The settings of a `SequenceParallel`, which of the tokens each rank owns, and refusals that reach all
    ranks. Calls over ranks stand on it: attention, `shard`, `loss`, `unshard`."""

    def __init__(
        self,
        group: Group = None,
        *,
        strategy: str = "auto:traffic",
        mask: AnyMask = "causal",
        layout: str = "zigzag",
        wire: str = "accumulator",
        timeout_s: float = _DEFAULT_TIMEOUT_S,
        proofs: str = "",
    ) -> None:
        for name, text in (("strategy", strategy), ("layout", layout), ("wire", wire), ("proofs", proofs)):
            if not isinstance(text, str):
                raise InvalidArgument(
                    f"SequenceParallel: {name} is a {type(text).__name__}; a text is required"
                )
        resolved = process_group(group)
        self.group_name: str = resolved.group_name if resolved is not None else ""
        self.rank: int = resolved.rank() if resolved is not None else 0
        self.world: int = resolved.size() if resolved is not None else 1
        self.mask: Mask = as_mask(mask)
        self.strategy = strategy
        self.layout = layout
        self.wire = wire
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 1e9:
            raise InvalidArgument(
                f"SequenceParallel: timeout_s is {timeout_s!r}; seconds, more than 0 and at most 1e9, are "
                "required"
            )
        self.timeout_s = float(timeout_s)
        self.proofs = proofs
        _native.check_settings(strategy, layout, wire)
        self._documents: dict[tuple[Mask, tuple[int, ...]], Mask] = {}
        self._process = os.getpid()
        self._group_key = (self.group_name, _native.id_of(self.group_name))
        if resolved is not None:
            leave_at_its_end(resolved)

    def positions(self, seq_len: int, mask: AnyMask | None = None) -> Tensor:
        """Global positions of this rank's tokens, [L] int64, in memory order. Not to be written to.

        Raises `InvalidArgument` for a length or mask of the wrong kind."""
        if not isinstance(seq_len, int) or not 0 <= seq_len < 2**63:
            raise InvalidArgument(f"positions: seq_len is {seq_len!r}; a number of tokens is required")
        if mask is not None and not isinstance(mask, Mask):
            mask = as_mask(mask)
        if not torch.compiler.is_compiling():
            _dealers[self._group_key] = self.layout
            lengths_dealt(self.layout, self.world).add(seq_len)
        return _positions(self._runs_of_ranks(seq_len, self.mask if mask is None else mask)[self.rank])

    def deal(self, seq_len: int, mask: AnyMask | None = None) -> Deal:
        """The deal of a sequence whose tokens of this rank were taken with `positions` in the place of
        `shard`: what they are is not known. Raises `InvalidArgument` as `positions` does."""
        self.positions(seq_len, mask)
        call_mask = self.mask if mask is None else as_mask(mask)
        deal = Deal(call_mask, seq_len, self.layout, self.world, self.rank)
        self._remember_dealt(deal)
        return deal

    def _remember_dealt(self, deal: Deal) -> None:
        if not torch.compiler.is_compiling():
            _dealt.remember(self._group_key, deal.seq_len, deal.digest)

    def _digest(self, deal: Deal | None, tokens: Tensor, length: int) -> Tensor | None:
        """The digest that ranks compare: that of the deal, of the shard that the tokens are, or of the last
        sequence of this length that this thread sharded. A graph that is compiled has none but that of the
        deal."""
        known = deal_of(tokens) if deal is None else deal
        if known is not None:
            return known.digest
        return None if torch.compiler.is_compiling() else _dealt.digest(self._group_key, length)

    def _call(self, options: Options, mask: str, lengths: tuple[int, int], head_dim: int) -> list[Any]:
        """The last arguments of the op: a text that stands for the call, seed and step of its dropout.

        python/src/arguments.cpp reads its lines in this order. Numbers are made plain ones, so that a graph
        that is compiled is one for each of them."""
        scale = float(max(head_dim, 1)) ** -0.5 if options.scale is None else options.scale
        mask = mask.replace("\n", "\\n")  # which no mask has
        softcap = "none" if options.softcap is None else float(options.softcap)
        text = (
            f"group={self.group_name}\nstrategy={self.strategy}\nlayout={self.layout}\n"
            f"q_len={int(lengths[0])}\nkv_len={int(lengths[1])}\nwire={self.wire}\n"
            f"scale={float(scale)}\nsoftcap={softcap}\ndropout={float(options.dropout)}\n"
            f"timeout_s={self.timeout_s}\nmask={mask}\nproofs={self.proofs}"
        )
        return [text, options.dropout_seed or 0, options.dropout_step]

    def _problem(self, seq_len: int, mask: Mask) -> Mapping[str, int | str]:
        """The fields of the extension's problem; heads do not matter for the layout."""
        sizes: dict[str, int | str] = {"batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 1, "value_dim": 1}
        return {
            "world": self.world,
            "q_len": seq_len,
            "kv_len": seq_len,
            "mask": mask.text_at(seq_len),
            "layout": self.layout,
            "wire": self.wire,
            "dtype": "fp32",
            **sizes,
        }

    def _runs_of_ranks(self, seq_len: int, mask: Mask) -> list[Runs]:
        """Global positions of the tokens of every rank, as the layout deals them."""
        return _native.shards(self._problem(seq_len, mask))

    def _positions_of_ranks(self, seq_len: int, mask: Mask) -> list[Tensor]:
        return [_positions(runs) for runs in self._runs_of_ranks(seq_len, mask)]

    def _sizes_of_ranks(self, seq_len: int, mask: Mask) -> list[int]:
        """The number of tokens of every rank."""
        return [sum(run[1] * run[3] for run in runs) for runs in self._runs_of_ranks(seq_len, mask)]

    def _mask_of(
        self,
        q: Tensor,
        mask: AnyMask | None,
        cu_seqlens: Tensor | None,
        seq_len: int | None,
        deal: Deal | None,
        kv_seq_len: int | None = None,
    ) -> tuple[str, int]:
        """The text of the mask of a call and the length of its sequence."""
        call_mask = None if mask is None else as_mask(mask)
        if cu_seqlens is not None:
            of_deal = self.mask if deal is None else check_deal("attention", deal, self._own_deal).mask
            call_mask = self._packed(cu_seqlens, of_deal if call_mask is None else call_mask)
        call_mask, length = self._dealt("attention", call_mask, seq_len, q, deal)
        return call_mask.text_at(length, kv_seq_len), length

    @property
    def _own_deal(self) -> Deal:
        """The place of this rank, of no sequence."""
        return Deal(self.mask, 0, self.layout, self.world, self.rank)

    def _dealt(
        self, where: str, mask: Mask | None, seq_len: int | None, q: Tensor, deal: Deal | None, dim: int = 1
    ) -> tuple[Mask, int]:
        """Mask and length of the sequence of a call with this rank's tokens in a dim of a tensor.

        Raises `InvalidArgument` if the tokens were dealt otherwise. The deal of a tensor that `shard`
        returned is checked too, and decides nothing: on another rank it may be forgotten in a copy."""
        known = deal_of(q) if deal is None else deal
        if known is not None:
            check_deal(where, known, self._own_deal)
        call_mask = mask or (self.mask if deal is None else deal.mask)
        length = seq_len or call_mask.length or (q.shape[dim] * self.world if deal is None else deal.seq_len)
        if isinstance(length, int) and not 0 <= length < 2**63:
            raise InvalidArgument(
                f"{where}: {count_of(length, 'token')}; a sequence of 0 to 2^56 tokens is required"
            )
        if known is not None and known.seq_len != length:
            raise InvalidArgument(
                f"{where}: a sequence of {count_of(length, 'token')}, tokens that were dealt from "
                f"{known.seq_len}; equal lengths are required"
            )
        if self.layout == "balanced" and self.world > 1:
            self._check_balanced(where, call_mask, length, known)
        if known is None and not torch.compiler.is_compiling():
            self._check_dealers(where)
            # Numbers of each rank that are no tokens may be gathered too.
            if not seq_len and not call_mask.length and where != "unshard":
                self._check_length(where, length)
        return call_mask, length

    def _check_length(self, where: str, length: int) -> None:
        """Raises `InvalidArgument` if a length that nobody has said is none of those that were dealt."""
        dealt = list(lengths_dealt(self.layout, self.world))
        if self.world > 1 and dealt and length not in dealt:
            raise InvalidArgument(
                f"{where}: {length // self.world} tokens on each of {self.world} ranks would be a sequence "
                f"of {length}, and none of that length was dealt, nearest: "
                f"{min(dealt, key=lambda one: abs(one - length))}; whole shards, or seq_len={length}, or the "
                "deal of the tokens is required"
            )

    def _check_dealers(self, where: str) -> None:
        """Raises `InvalidArgument` if the last tokens of this group were dealt by another layout."""
        last = _dealers.get(self._group_key, self.layout)
        if self.world > 1 and last != self.layout:
            raise InvalidArgument(
                f"{where}: this SequenceParallel has layout {self.layout}, and the last tokens of its group "
                f"were dealt by another, of layout {last}; tokens that it dealt, or deal=sp.deal(seq_len), "
                "are required"
            )

    def _check_balanced(self, where: str, mask: Mask, length: int, deal: Deal | None) -> None:
        """Raises `InvalidArgument` unless the tokens were dealt as this mask does it."""
        if deal is None:
            raise InvalidArgument(
                f"{where}: layout balanced deals tokens by the mask, and it is not known which mask dealt "
                "these; deal=batch.deal, or deal=sp.deal(seq_len, mask), is required"
            )
        if mask == deal.mask:
            return
        ours, theirs = (self._positions_of_ranks(length, one) for one in (mask, deal.mask))
        if not all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)):
            raise InvalidArgument(
                f"{where}: layout balanced dealt these tokens by the mask {str(deal.mask)[:80]}, and "
                f"{str(mask)[:80]} is asked for; the mask that dealt them, or a layout of all masks, such as "
                "zigzag, is required"
            )

    def _packed(self, cu_seqlens: Tensor, within: Mask) -> Mask:
        """Documents within a mask: the same object for the same documents, for layers ask again and again."""
        if not isinstance(cu_seqlens, Tensor):
            raise InvalidArgument(f"cu_seqlens: a {type(cu_seqlens).__name__}; a tensor is required")
        if cu_seqlens.is_meta:
            raise InvalidArgument("cu_seqlens: a meta tensor; one with numbers is required")
        key = (within, tuple(cu_seqlens.flatten().tolist()))
        known = self._documents.get(key)
        if known is None:
            known = documents_of(cu_seqlens, within)
            remember(self._documents, key, known, _REMEMBERED)
        return known

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Refusals inside it, and failures that nobody thought of, reach all ranks: `CommError` with their
        text on ranks that make another call."""
        try:
            yield
        except InvalidArgument as refused:
            if not refused.is_told:
                self._tell(str(refused))
            raise InvalidArgument(str(refused)) from None
        except Error:
            raise  # The others know: it came from a call of theirs too.
        except Exception as failure:
            self._tell(f"{type(failure).__name__}: {_first_line(failure)}")
            raise

    def _tell(self, text: str) -> None:
        if os.getpid() != self._process:
            return  # A worker of this rank: its process hears of it from the worker.
        with suppress(Error):  # that of the refusal, or one that says why the others cannot be told
            _native.refuse(self.group_name, self.timeout_s, text)


def _first_line(failure: Exception) -> str:
    return str(failure).partition("\n")[0]


def _positions(runs: Runs) -> Tensor:
    parts = [
        (begin + step * torch.arange(count).unsqueeze(1) + torch.arange(width)).flatten()
        for begin, count, step, width in runs
    ]
    return torch.cat([torch.arange(0), *parts])
