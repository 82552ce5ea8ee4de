"""The loss of a sequence whose tokens lie on several ranks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from armillary._deal import Deal, check_deal, check_digests, deal_of, unknown_digest
from armillary._groups import gather_over_ranks
from armillary._spread import Spread
from armillary._tensors import check_strided
from armillary.errors import InvalidArgument

IGNORED = -100  # label of a token without a target, as in PyTorch


def _check(logits: Tensor, labels: Tensor, reduce: str) -> None:
    if reduce not in ("mean", "sum"):
        raise InvalidArgument(
            f"loss: reduce is {reduce!r}; 'mean' or 'sum' of gradients over ranks is required"
        )
    for name, tensor in (("logits", logits), ("labels", labels)):
        check_strided(f"loss: {name}", tensor)
    if labels.device != logits.device:
        raise InvalidArgument(
            f"loss: labels is on {labels.device}, logits on {logits.device}; one device for both is required"
        )
    is_of_labels = logits.dim() > 0 and logits.shape[:-1] == labels.shape
    if not is_of_labels or not logits.is_floating_point() or labels.dtype != torch.int64:
        raise InvalidArgument(
            f"loss: logits {logits.dtype} {list(logits.shape)}, labels {labels.dtype} {list(labels.shape)}; "
            "logits of each label and int64 labels are required, both as shard returned them"
        )


def _sum_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over this rank's labels, in fp32, or fp64 for fp64 logits."""
    flat = logits.reshape(-1, logits.shape[-1])
    flat = flat if flat.dtype == torch.float64 else flat.float()
    try:
        return functional.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum")
    except (IndexError, RuntimeError) as wrong:
        raise InvalidArgument(
            f"loss: {wrong}; labels in [0, {logits.shape[-1]}) or {IGNORED} are required"
        ) from wrong


def sharded_cross_entropy(
    sp: Spread,
    logits: Tensor,
    labels: Tensor,
    *,
    deal: Deal | None,
    reduce: Literal["mean", "sum"],
) -> Tensor:
    """See `SequenceParallel.loss`."""
    _check(logits, labels, reduce)
    deal = deal_of(labels) if deal is None else deal
    digest = unknown_digest() if deal is None else check_deal("loss", deal, sp._own_deal).digest
    mine = _sum_of(logits, labels)
    count = (labels != IGNORED).sum()
    # Bits of numbers, beside those of the digest.
    own = torch.stack([mine.detach().double().view(torch.int64), count, digest.to(count.device)])
    parts = gather_over_ranks(own, sp.group_name, sp.timeout_s)
    if deal is not None:
        for rank, theirs in enumerate(parts[:, 2].tolist()):
            check_digests("loss", sp.rank, int(digest), rank, theirs)
    # Sums are taken in the order of ranks in fp64: the same bits on every rank.
    whole, labelled = parts[:, 0].contiguous().view(torch.float64).sum(0), parts[:, 1].sum(0).double()
    scale = (sp.world if reduce == "mean" else 1) / labelled
    # The value is that of all ranks, the gradient that of this rank's part.
    part = mine * scale.to(mine.dtype)
    loss: Tensor = (part - part.detach()) + (whole / labelled).to(mine.dtype)
    return loss
