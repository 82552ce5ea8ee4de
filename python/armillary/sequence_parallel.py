"""Attention over a sequence that is spread over the ranks of a process group."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from armillary import _native
from armillary._sharding import ShardedBatch, gather_tokens, shard_batch
from armillary.errors import InvalidArgument
from armillary.loss import sharded_cross_entropy
from armillary.masks import Mask, as_mask, documents_of

Format = Literal["BLHD", "BHLD"]
Group = dist.ProcessGroup | DeviceMesh | None
_DEFAULT_TIMEOUT_S = 60.0


def _process_group(group: Group) -> dist.ProcessGroup | None:
    """The process group that is meant; None for a group of one rank."""
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise InvalidArgument(
                f"SequenceParallel: a mesh of {group.ndim} axes {group.mesh_dim_names}; one axis is "
                "required, such as "
                f'mesh["cp"]'
            )
        return group.get_group()
    if group is None:
        return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgument(
            f"SequenceParallel: group is a {type(group).__name__}; a ProcessGroup, a DeviceMesh of one axis "
            "or None is "
            "required"
        )
    return group


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
    mask: a text as on the command line, or an object of `armillary.masks`.
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
        mask: str | Mask | Tensor | object = "causal",
        layout: str = "zigzag",
        wire: str = "accumulator",
        timeout_s: float = _DEFAULT_TIMEOUT_S,
        proofs: str = "",
    ) -> None:
        resolved = _process_group(group)
        self.group_name: str = resolved.group_name if resolved is not None else ""
        self.rank: int = resolved.rank() if resolved is not None else 0
        self.world: int = resolved.size() if resolved is not None else 1
        if self.rank < 0:
            raise InvalidArgument(
                "SequenceParallel: this rank is not in the group; a group that holds it is required"
            )
        self.mask: Mask = as_mask(mask)
        self.strategy = strategy
        self.layout = layout
        self.wire = wire
        self.timeout_s = float(timeout_s)
        self.proofs = proofs
        _native.check_settings(strategy, layout, wire)
        if resolved is not None:
            weakref.finalize(resolved, _native.leave_group, self.group_name)

    def shard(
        self, *, dim: int = 1, ragged: Literal["refuse", "uneven"] = "refuse", **whole: Tensor | None
    ) -> ShardedBatch:
        """This rank's tokens of tensors that hold the whole sequence, the same on all ranks.

        whole: tensors [B, S, ..] by name, such as input_ids, labels, positions, document_ids; None is left
          out. `labels` are those of the same positions, as Hugging Face wants them (labels[:, i] is token i,
          -100 is ignored): they are shifted here, once, so that `loss` compares logits and labels of the same
          place. `document_ids` [B, S], equal for neighbours of one document and for all batch entries,
          restrict attention to documents: give `mask=batch.mask`.
        ragged: a sequence whose shards differ in size is refused, or, with "uneven", sharded as it is; give
          `seq_len` to `attention` then.

        Returns a dict of the tensors, in the order of the layout, with `positions` [B, L] (global, or within
        the document) if they were not given, and with `mask` and `seq_len`. Raises `InvalidArgument` for
        tensors that are sharded already, labels that are shifted already, and lengths that differ."""
        return shard_batch(self, whole, dim=dim, ragged=ragged)

    def positions(self, seq_len: int, mask: Mask | None = None) -> Tensor:
        """Global positions of this rank's tokens, [L] int64, in memory order."""
        fields = self._problem(seq_len, mask or self.mask)
        return torch.tensor(_native.positions(fields, self.rank, False), dtype=torch.int64)

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
        mask: str | Mask | None = None,
        cu_seqlens: Tensor | None = None,
        seq_len: int | None = None,
        format: Format = "BLHD",
    ) -> Tensor:
        """Attention of this rank's queries over the keys of all ranks; differentiable once. Collective.

        q [B, L, H, D], k [B, L, G, D], v [B, L, G, E]; with format="BHLD" [B, H, L, D] and so on. Any
          strides. fp64, fp32, bf16 or fp16, the same for all; CPU. H is a multiple of G.
        scale: factor of q k^T; 1 / sqrt(D) by default. softcap: scores become softcap tanh(score / softcap).
        alibi_slopes: [H] fp32, no gradient. sinks: [H] logits that join the denominator of every row; their
          gradient on a rank is its share: the sum over ranks is the gradient.
        dropout: chance that a probability is dropped, a function of (dropout_seed, dropout_step, batch entry,
          head, query, key): the same on any world. Give every layer a seed and every step a number.
        mask: in the place of the object's. cu_seqlens: [n + 1] begins of the packed documents of the whole
          sequence, int32 or int64 on the CPU; each attends to itself only, within the mask.
        seq_len: tokens of the whole sequence, if it is not L times the number of ranks.

        Returns [B, L, H, E], contiguous, or [B, H, L, E]. Raises `InvalidArgument` if the call cannot be
        done, on all ranks if they were asked for different things; `PlanError` if the plan is not exact;
        `CommError` if a peer failed or refused."""
        if format == "BHLD":
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        elif format != "BLHD":
            self._refuse(f"attention: format is {format!r}; BLHD or BHLD is required")
        if dropout > 0 and dropout_seed is None:
            self._refuse(
                f"attention: dropout {dropout} without dropout_seed; a number for every layer is required"
            )
        text, length = self._mask_of(q, mask, cu_seqlens, seq_len)
        out: Tensor = torch.ops.armillary.attention_forward(
            q,
            k,
            v,
            sinks,
            alibi_slopes,
            self.group_name,
            self.strategy,
            self.layout,
            text,
            length,
            length,
            self.wire,
            float(q.shape[-1]) ** -0.5 if scale is None else scale,
            softcap,
            dropout,
            dropout_seed or 0,
            dropout_step,
            self.timeout_s,
            self.proofs,
        )[0]
        return out.transpose(1, 2) if format == "BHLD" else out

    def unshard(self, tokens: Tensor, *, dim: int = 1, seq_len: int | None = None) -> Tensor:
        """The whole sequence from the tokens of all ranks, in the order of positions: the inverse of `shard`.

        tokens: [B, L, ..]; returns [B, S, ..] on every rank. Collective. Differentiable: if every rank
        computes the same from the result, the gradient of a rank's tokens is its part of the result's."""
        return gather_tokens(self, tokens, dim=dim, seq_len=seq_len)

    def loss(self, logits: Tensor, labels: Tensor, *, reduce: Literal["mean", "sum"] = "mean") -> Tensor:
        """Cross entropy of the whole sequence, the same number on every rank. Collective.

        logits [B, L, V] or [N, V] and labels [B, L] or [N] as `shard` returned them: of the same places,
        shifted once, -100 ignored. The value is the mean over all labels of all ranks, as on one device.

        The gradient is that of this rank's tokens, scaled such that the MEAN over ranks of the parameters'
        gradients is the gradient of one device: DDP and FSDP take this mean. With reduce="sum" their sum
        is."""
        return sharded_cross_entropy(self, logits, labels, reduce=reduce)

    def __repr__(self) -> str:
        return (
            f"SequenceParallel(rank {self.rank} of {self.world}, strategy={self.strategy!r}, "
            f"mask={str(self.mask)!r}, "
            f"layout={self.layout!r}, wire={self.wire!r})"
        )

    def _problem(self, seq_len: int, mask: Mask) -> Mapping[str, int | str]:
        """The fields of the extension's problem; heads do not matter for the layout."""
        sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "head_dim": 1, "value_dim": 1, "dtype": "fp32"}
        return {
            "world": self.world,
            "q_len": seq_len,
            "kv_len": seq_len,
            "mask": mask.text_at(seq_len),
            "layout": self.layout,
            "wire": self.wire,
            **sizes,
        }

    def _mask_of(
        self, q: Tensor, mask: str | Mask | None, cu_seqlens: Tensor | None, seq_len: int | None
    ) -> tuple[str, int]:
        """The text of the mask of a call and the length of its sequence."""
        chosen = self.mask
        if mask is not None:
            chosen = mask if isinstance(mask, Mask) else as_mask(mask)
        if cu_seqlens is not None:
            chosen = documents_of(cu_seqlens, chosen)
        length = seq_len or chosen.length or q.shape[1] * self.world
        return chosen.text_at(length), length

    def _refuse(self, text: str) -> NoReturn:
        """Raises `InvalidArgument` here, and `CommError` with this text on all other ranks."""
        _native.refuse(self.group_name, self.timeout_s, text)
        raise InvalidArgument(text)
