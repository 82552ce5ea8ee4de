"""The loss of a sequence whose tokens lie on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.nn import functional

from armillary.errors import InvalidArgument

if TYPE_CHECKING:
    from armillary.sequence_parallel import SequenceParallel

IGNORED = -100  # label of a token without a target, as in PyTorch


def sharded_cross_entropy(
    sp: SequenceParallel, logits: Tensor, labels: Tensor, *, reduce: Literal["mean", "sum"]
) -> Tensor:
    """See `SequenceParallel.loss`."""
    if logits.shape[:-1] != labels.shape:
        raise InvalidArgument(
            f"loss: logits {list(logits.shape)}, labels {list(labels.shape)}; logits of each label are "
            "required: "
            "both as shard returned them"
        )
    if reduce not in ("mean", "sum"):
        raise InvalidArgument(
            f"loss: reduce is {reduce!r}; 'mean' or 'sum' of gradients over ranks is required"
        )
    flat = logits.reshape(-1, logits.shape[-1]).float()
    mine = functional.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum")
    count = (labels != IGNORED).sum().to(mine.dtype)
    totals = torch.stack([mine.detach(), count])
    if sp.world > 1:
        dist.all_reduce(totals, group=_resolve_process_group(sp.group_name))
    whole, labelled = totals[0], totals[1]
    scale = (sp.world if reduce == "mean" else 1) / labelled
    # The value is that of all ranks, the gradient that of this rank's part.
    part = mine * scale
    return part + (whole / labelled - part.detach())
