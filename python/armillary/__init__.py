"""Exact attention over sequences that are spread over ranks, planned as data and proved before it runs.

    sp = armillary.SequenceParallel(group, strategy="auto:traffic", mask="causal", layout="zigzag")
    batch = sp.shard(input_ids=input_ids, labels=labels)
    out_BLHD = sp.attention(q_BLHD, k_BLGD, v_BLGD)
    loss = sp.loss(logits, batch["labels"])

Letters of shapes: B batch entries, L tokens of this rank, S tokens of the whole sequence, H query heads, G
key and value heads, D head dim of queries and keys, E of values. Nothing is patched and no process is started
on import."""

from armillary._load import check_torch

check_torch()

from armillary import _native, masks  # noqa: E402, the version comes first
from armillary._check import check  # noqa: E402
from armillary._deal import Deal  # noqa: E402
from armillary._ops import leave_groups  # noqa: E402
from armillary._report import Report, Row  # noqa: E402
from armillary.checkpointing import keep_attention  # noqa: E402
from armillary.errors import (  # noqa: E402
    BuildError,
    CommError,
    Error,
    InternalError,
    InvalidArgument,
    IoError,
    PlanError,
)
from armillary.plans import Comparison, Diagnostic, Plan, Proof, compare, plan, strategies, verify  # noqa: E402
from armillary.sequence_parallel import SequenceParallel  # noqa: E402
from armillary.sessions import Sessions  # noqa: E402

__version__ = _native.VERSION

__all__ = [
    "BuildError",
    "CommError",
    "Comparison",
    "Deal",
    "Diagnostic",
    "Error",
    "InternalError",
    "InvalidArgument",
    "IoError",
    "Plan",
    "PlanError",
    "Proof",
    "Report",
    "Row",
    "SequenceParallel",
    "Sessions",
    "check",
    "compare",
    "keep_attention",
    "leave_groups",
    "masks",
    "plan",
    "strategies",
    "verify",
]
