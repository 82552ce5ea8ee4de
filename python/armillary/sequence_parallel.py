"""Attention over a sequence that is spread over the ranks of a process group."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from armillary._deal import Deal, check_deal, deal_of
from armillary._feeding import AttentionInProgress, check_eager
from armillary._options import NAMES, AnyMask, Format, Options, check_call, check_options
from armillary._sdpa import PatchedSdpa
from armillary._sharding import ShardedBatch, gather_tokens, shard_batch
from armillary._spread import Spread
from armillary.errors import InvalidArgument
from armillary.loss import sharded_cross_entropy
from armillary.masks import Mask


class SequenceParallel(Spread):
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
        options = Options(
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
        return self._attended(q, k, v, options, with_max=False)[0]

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
        self, q: Tensor, k: Tensor, v: Tensor, options: Options, *, with_max: bool
    ) -> tuple[Tensor, Tensor]:
        """Output and largest logits; no logits unless they are asked for."""
        with self._refusals():
            qkv = {"q": q, "k": k, "v": v}
            check_call(options.format, qkv, {"alibi_slopes": options.alibi_slopes, "sinks": options.sinks})
            if options.format == "BHLD":
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            check_options(options)
            text, length = self._mask_of(
                q, options.mask, options.cu_seqlens, options.seq_len, options.deal, options.kv_seq_len
            )
            kv_length = self._kv_length(k, options, length)
        results = torch.ops.armillary.attention_forward(
            q,
            k,
            v,
            options.sinks,
            options.alibi_slopes,
            self._digest(options.deal, q, length),
            with_max,
            *self._call(options, text, (length, kv_length), q.shape[-1]),
        )
        out: Tensor = results[0]
        return out.transpose(1, 2) if options.format == "BHLD" else out, results[6]

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

    def _kv_length(self, k: Tensor, call: Options, length: int) -> int:
        """Tokens of the sequence of keys. Raises `InvalidArgument` if they were dealt otherwise, or if it is
        not said which of them a query sees."""
        if call.kv_seq_len is None:
            return length
        if call.mask is None or call.cu_seqlens is not None or self.layout == "balanced":
            raise InvalidArgument(
                f"attention: kv_seq_len is {call.kv_seq_len}, with layout {self.layout}, mask {call.mask}, "
                f"cu_seqlens {call.cu_seqlens is not None}; a mask of the call, such as 'full', without "
                "cu_seqlens, and a layout of all masks, such as zigzag, are required"
            )
        known = deal_of(k)
        if known is not None and check_deal("attention", known, self._own_deal).seq_len != call.kv_seq_len:
            raise InvalidArgument(
                f"attention: kv_seq_len is {call.kv_seq_len}, and k was dealt from {known.seq_len} tokens; "
                "equal lengths are required"
            )
        return call.kv_seq_len

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
        return PatchedSdpa(self, self.attention, mask, seq_len, deal)

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
