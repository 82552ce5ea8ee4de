"""Attention over a sequence that is spread over the ranks of a process group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

import torch
from torch import Tensor

from armillary import _native
from armillary._deal import Deal, check_deal, deal_of
from armillary._feeding import AttentionInProgress, check_eager
from armillary._groups import Group, leave_at_its_end, process_group
from armillary._options import NAMES, AnyMask, Format, Options, check_call, check_options
from armillary._sdpa import PatchedSdpa
from armillary._sharding import ShardedBatch, gather_tokens, shard_batch
from armillary.errors import Error, InvalidArgument
from armillary.loss import sharded_cross_entropy
from armillary.masks import Mask, as_mask, documents_of

_DEFAULT_TIMEOUT_S = 60.0
_dealers: dict[tuple[str, int], str] = {}  # layout that dealt tokens last, in each group
_REMEMBERED = 16  # entries that each cache keeps: positions of the ranks, masks of documents


class SequenceParallel:
    """Shards sequences over a group of ranks and attends over them exactly.

        sp = SequenceParallel(mesh["cp"], strategy="auto:traffic", mask="causal", layout="zigzag")
        batch = sp.shard(input_ids=input_ids, labels=labels)
        out_BLHD = sp.attention(q_BLHD, k_BLGD, v_BLGD)

    Output and gradients equal those of one device over the whole sequence, up to rounding; a call that cannot
    be done as asked is refused on all ranks before a byte moves. The first call of a problem proves its plan.

    group: a `ProcessGroup`, a `DeviceMesh` of one axis, or None: the default group, or one rank if there is
      none. The object holds no group alive; a group that is destroyed is left.
    strategy: name and keys as on the command line (`armillary.strategies()`).
    mask: a text as on the command line, an object of `armillary.masks`, a BlockMask of flex_attention or a
      dense boolean tensor [S, S] (`masks.from_block_mask`, `masks.from_dense`).
    layout: contiguous, zigzag, striped[:W] or balanced: the tokens that each rank owns.
    wire: accumulator or input: dtype in which partial results travel.
    timeout_s: longest wait for a peer.
    proofs: folder of recorded proofs (`armillary verify --save-proof`); empty for none.

    All ranks make the same calls in the same order, and run their backward passes in the same order. Threads:
    calls of one group run one after the other. Raises `InvalidArgument` for a group, mask or strategy of the
    wrong kind."""

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
        self._shards: dict[tuple[int, Mask], list[Tensor]] = {}
        self._documents: dict[tuple[Mask, tuple[int, ...]], Mask] = {}
        self._process = os.getpid()
        self._group_key = (self.group_name, _native.id_of(self.group_name))
        if resolved is not None:
            leave_at_its_end(resolved)

    def shard(
        self, *, dim: int = 1, ragged: Literal["refuse", "uneven"] = "refuse", **whole: Tensor | None
    ) -> ShardedBatch:
        """This rank's tokens of tensors that hold the whole sequence, the same on all ranks.

        whole: tensors [B, S, ..] by name, such as input_ids, labels, positions, document_ids; None is left
          out. `labels` are those of the same positions, as Hugging Face wants them (labels[:, i] is token i,
          -100 is ignored): they are shifted here, once, so that `loss` compares logits and labels of the same
          place. `document_ids` [B, S], equal for neighbours of one document and for all batch entries,
          restrict attention to documents: give `deal=batch.deal`.
        ragged: a sequence whose shards differ in size is refused, or, with "uneven", sharded as it is; give
          `seq_len` to `attention` then.

        Returns a dict of the tensors, in the order of the layout, with `positions` [B, L] (global, or within
        the document) if they were not given, and with `deal`, which has `mask` and `seq_len`: given to
        `attention`, ranks compare that they attend to the same sequence. Raises `InvalidArgument` for tensors
        that are sharded already, labels that are shifted already, and lengths that differ."""
        with self._refusals():
            return shard_batch(self, whole, dim=dim, ragged=ragged)

    def positions(self, seq_len: int, mask: AnyMask | None = None) -> Tensor:
        """Global positions of this rank's tokens, [L] int64, in memory order. Not to be written to.

        Raises `InvalidArgument` for a length or mask of the wrong kind."""
        if not isinstance(seq_len, int) or not 0 <= seq_len < 2**63:
            raise InvalidArgument(f"positions: seq_len is {seq_len!r}; a number of tokens is required")
        if mask is not None and not isinstance(mask, Mask):
            mask = as_mask(mask)
        if not torch.compiler.is_compiling():
            _dealers[self._group_key] = self.layout
        return self._positions_of_ranks(seq_len, self.mask if mask is None else mask)[self.rank]

    def deal(self, seq_len: int, mask: AnyMask | None = None) -> Deal:
        """The deal of a sequence whose tokens of this rank were taken with `positions` in the place of
        `shard`. Raises `InvalidArgument` as `positions` does."""
        self.positions(seq_len, mask)
        chosen = self.mask if mask is None else as_mask(mask)
        return Deal(chosen, seq_len, self.layout, self.world, self.rank)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
        dropout: float = 0.0,
        dropout_seed: int | None = None,
        dropout_step: int = 0,
        mask: AnyMask | None = None,
        cu_seqlens: Tensor | None = None,
        seq_len: int | None = None,
        kv_seq_len: int | None = None,
        deal: Deal | None = None,
        format: Format = "BLHD",
    ) -> Tensor:
        """Attention of this rank's queries over the keys of all ranks; differentiable once. Collective.

        q [B, L, H, D], k [B, L, G, D], v [B, L, G, E]; with format="BHLD" [B, H, L, D] and so on. Any
          strides, also those of expanded and transposed views. fp64, fp32, bf16 or fp16, the same for all;
          CPU. H is a multiple of G.
        scale: factor of q k^T; 1 / sqrt(D) by default. softcap: scores become softcap tanh(score / softcap).
        alibi_slopes: [H] fp32, no gradient. sinks: [H] logits that join the denominator of every row; their
          gradient on a rank is its share: the sum over ranks is the gradient.
        dropout: chance that a probability is dropped, a function of (dropout_seed, dropout_step, batch entry,
          head, query, key): the same on any world. Give every layer a seed and every step a number.
        mask: in the place of the object's. cu_seqlens: [n + 1] begins of the packed documents of the whole
          sequence, int32 or int64 on the CPU; each attends to itself only, within the mask.
        seq_len: tokens of the whole sequence, if it is not L times the number of ranks.
        kv_seq_len: tokens of the whole sequence of keys, if it is another one (cross-attention): k and v hold
          this rank's tokens of it, in the same layout. Needs `mask`, such as "full".
        deal: that of the tokens, `batch.deal`; mask and seq_len are its own unless they are given, and tokens
          that were dealt by another layout are refused. Layout balanced needs it: its mask deals the tokens.

        Backward: every gradient is that of one device. Second derivatives are refused. Autocast casts q, k
        and v as for `scaled_dot_product_attention`, and their gradients back. Under `torch.compile` and
        `torch.export` the call is one op of the graph; numbers of `cu_seqlens` cannot be read while tracing,
        so give `mask=` instead.

        Returns [B, L, H, E], contiguous, or [B, H, L, E]. Raises `InvalidArgument` if the call cannot be
        done, on all ranks if they were asked for different things; `PlanError` if the plan is not exact;
        `CommError` if a peer failed or refused."""
        given = Options(
            scale,
            softcap,
            alibi_slopes,
            sinks,
            dropout,
            dropout_seed,
            dropout_step,
            mask,
            cu_seqlens,
            seq_len,
            kv_seq_len,
            deal,
            format,
        )
        return self._attended(q, k, v, given, with_max=False)[0]

    def attention_and_max_logits(
        self, q: Tensor, k: Tensor, v: Tensor, **settings: Any
    ) -> tuple[Tensor, Tensor]:
        """`attention` with the same settings, and the largest score of each query head over the sequence and
        the batch, [H] in fp32 (fp64 for fp64): the same bits on every rank, -inf if nothing is visible, sinks
        not counted, no gradient. Costs a message of H numbers to every other rank. Collective.

        Raises `InvalidArgument` as `attention` does, also for settings that it does not have."""
        with self._refusals():
            others = sorted(set(settings) - NAMES)
            if others:
                raise InvalidArgument(
                    f"attention_and_max_logits: {others[0]} is no setting of attention; one of its names is "
                    "required"
                )
        return self._attended(q, k, v, Options(**settings), with_max=True)

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, given: Options, *, with_max: bool
    ) -> tuple[Tensor, Tensor]:
        """Output and largest logits; no logits unless they are asked for."""
        with self._refusals():
            qkv = {"q": q, "k": k, "v": v}
            check_call(given.format, qkv, {"alibi_slopes": given.alibi_slopes, "sinks": given.sinks})
            if given.format == "BHLD":
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            check_options(given)
            text, length = self._mask_of(
                q, given.mask, given.cu_seqlens, given.seq_len, given.deal, given.kv_seq_len
            )
            kv_length = self._kv_length(k, given, length)
        results = torch.ops.armillary.attention_forward(
            q,
            k,
            v,
            given.sinks,
            given.alibi_slopes,
            None if given.deal is None else given.deal.digest,
            with_max,
            *self._call(given, text, (length, kv_length), q.shape[-1]),
        )
        out: Tensor = results[0]
        return out.transpose(1, 2) if given.format == "BHLD" else out, results[6]

    def _call(self, given: Options, mask: str, lengths: tuple[int, int], head_dim: int) -> list[Any]:
        """The last arguments of the op."""
        return [
            self.group_name,
            self.strategy,
            self.layout,
            mask,
            *lengths,
            self.wire,
            float(max(head_dim, 1)) ** -0.5 if given.scale is None else given.scale,
            given.softcap,
            given.dropout,
            given.dropout_seed or 0,
            given.dropout_step,
            self.timeout_s,
            self.proofs,
        ]

    def begin(self, *, heads: int, value_dim: int | None = None, **settings: Any) -> AttentionInProgress:
        """A call of `attention` that takes K, V and Q one by one: K and V travel while the next is computed.

            with sp.begin(heads=H) as call:
                call.feed_k(project_k(x))
                call.feed_v(project_v(x))
                out_BLHE = call.finish(project_q(x))

        heads: those of q. value_dim: that of v, if it is not that of k. settings: those of `attention`, but
          `kv_seq_len`.

        Output and gradients are those of `attention` on the three, bit for bit. Under `torch.compile` the
        graph breaks here; with fullgraph=True and `torch.export` it is refused: call `attention` there. See
        `AttentionInProgress`. Raises `InvalidArgument` for settings that it does not have."""
        check_eager()
        with self._refusals():
            return AttentionInProgress(self, heads, value_dim, settings)

    def _kv_length(self, k: Tensor, given: Options, length: int) -> int:
        """Tokens of the sequence of keys. Raises `InvalidArgument` if they were dealt otherwise, or if it is
        not said which of them a query sees."""
        if given.kv_seq_len is None:
            return length
        if given.mask is None or given.cu_seqlens is not None or self.layout == "balanced":
            raise InvalidArgument(
                f"attention: kv_seq_len is {given.kv_seq_len}, with layout {self.layout}, mask {given.mask}, "
                f"cu_seqlens {given.cu_seqlens is not None}; a mask of the call, such as 'full', without "
                "cu_seqlens, and a layout of all masks, such as zigzag, are required"
            )
        known = deal_of(k)
        if known is not None and check_deal("attention", known, self._own_deal).seq_len != given.kv_seq_len:
            raise InvalidArgument(
                f"attention: kv_seq_len is {given.kv_seq_len}, and k was dealt from {known.seq_len} tokens; "
                "equal lengths are required"
            )
        return given.kv_seq_len

    def patch_sdpa(
        self, *, mask: str | Mask | None = None, seq_len: int | None = None, deal: Deal | None = None
    ) -> PatchedSdpa:
        """A context in which `torch.nn.functional.scaled_dot_product_attention` of this thread is
        `attention`.

            with sp.patch_sdpa(deal=batch.deal) as patch:
                logits = model(batch["input_ids"])  # as it is

        q, k, v [B, H, L, D] are those of this rank's tokens. Masks are declared, never guessed: `mask`, or
        that of the deal or the object, holds in every call, and attn_mask is refused. Rotary positions and
        labels are the caller's, as `shard` returns them. Backward passes may run outside, but not those of
        activation checkpointing, which call attention again. seq_len, deal: as for `attention`.

        Raises `InvalidArgument` for attn_mask, for is_causal if the declared mask is not, for dropout, for
        modules that attend without that function, and at the end if it was not called at all."""
        return PatchedSdpa(self, mask, seq_len, deal)

    def unshard(
        self,
        tokens: Tensor,
        *,
        dim: int = 1,
        seq_len: int | None = None,
        deal: Deal | None = None,
        reduce: Literal["mean", "sum"] = "mean",
    ) -> Tensor:
        """The whole sequence from the tokens of all ranks, in the order of positions: the inverse of `shard`.

        tokens: [B, L, ..]. seq_len, deal: as for `attention`; tensors that `shard` returned know their own.
        Returns [B, S, ..] on every rank. Collective. Differentiable, if every rank computes the same from it.

        The gradient of a rank's tokens is its part of the result's gradient times the number of ranks, so
        that the MEAN over ranks of the parameters' gradients, as DDP and FSDP take it, is that of one device
        for the parameters before and behind it. If you sum gradients, divide the loss by the number of
        ranks. With reduce="sum" the factor is 1: the SUM over ranks is right for the parameters before it,
        and those behind it have their whole gradient on every rank (docs/own_losses.md)."""
        with self._refusals():
            return gather_tokens(self, tokens, dim=dim, seq_len=seq_len, deal=deal, reduce=reduce)

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        deal: Deal | None = None,
        reduce: Literal["mean", "sum"] = "mean",
    ) -> Tensor:
        """Cross entropy of the whole sequence, the same number on every rank. Collective.

        logits [B, L, V] or [N, V] and labels [B, L] or [N] as `shard` returned them: of the same places,
        shifted once, -100 ignored. The value is the mean over all labels of all ranks, as on one device.
        deal: that of the labels, for labels that `shard` did not return. Ranks whose labels were dealt from
        different sequences are refused.

        The gradient is that of this rank's tokens, scaled such that the gradient of one device is the MEAN
        over ranks of the parameters' gradients, as DDP and FSDP take it, or with reduce="sum" their SUM. The
        value is the same for both."""
        with self._refusals():
            return sharded_cross_entropy(self, logits, labels, deal=deal, reduce=reduce)

    def __repr__(self) -> str:
        return (
            f"SequenceParallel(rank {self.rank} of {self.world}, strategy={self.strategy!r}, "
            f"mask={str(self.mask)!r}, layout={self.layout!r}, wire={self.wire!r})"
        )

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

    def _positions_of_ranks(self, seq_len: int, mask: Mask) -> list[Tensor]:
        """Global positions of the tokens of every rank."""
        known = self._shards.get((seq_len, mask))
        if known is None:
            known = [_positions(runs) for runs in _native.shards(self._problem(seq_len, mask))]
            _remember(self._shards, (seq_len, mask), known)
        return known

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
        chosen = None if mask is None else as_mask(mask)
        if cu_seqlens is not None:
            of_deal = self.mask if deal is None else check_deal("attention", deal, self._own_deal).mask
            chosen = self._packed(cu_seqlens, of_deal if chosen is None else chosen)
        chosen, length = self._dealt("attention", chosen, seq_len, q, deal)
        return chosen.text_at(length, kv_seq_len), length

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
        chosen = mask or (self.mask if deal is None else deal.mask)
        length = seq_len or chosen.length or (q.shape[dim] * self.world if deal is None else deal.seq_len)
        if isinstance(length, int) and not 0 <= length < 2**63:
            raise InvalidArgument(f"{where}: {length} tokens; a sequence of 0 to 2^56 tokens is required")
        if known is not None and known.seq_len != length:
            raise InvalidArgument(
                f"{where}: a sequence of {length} tokens, tokens that were dealt from {known.seq_len}; equal "
                "lengths are required"
            )
        if self.layout == "balanced" and self.world > 1:
            self._check_balanced(where, chosen, length, known)
        if known is None and not torch.compiler.is_compiling():
            self._check_dealers(where)
        return chosen, length

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
            _remember(self._documents, key, known)
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


def _positions(runs: list[tuple[int, int, int, int]]) -> Tensor:
    """Positions of strided runs (begin, count, step, width), in order."""
    parts = [
        (begin + step * torch.arange(count).unsqueeze(1) + torch.arange(width)).flatten()
        for begin, count, step, width in runs
    ]
    return torch.cat([torch.arange(0), *parts])


def _remember(known: dict[Any, Any], key: object, value: object) -> None:
    """Keeps the last few."""
    known[key] = value
    # Threads may do so at the same time: the list is a copy, and a key that is gone is no error.
    for oldest in list(known)[:-_REMEMBERED]:
        known.pop(oldest, None)
