"""The ops as PyTorch sees them: fake kernels, and the end of the process.

`torch.ops.armillary.attention_forward` and `attention_backward` are registered by the compiled module, with
kernels, autograd and autocast. They take tensors, and a call as `Spread._call` describes it: a text with the
name of the group, its strategy, mask and so on, and two numbers."""

import atexit

import torch

from armillary import _native


def leave_groups() -> None:
    """Leaves all groups of ranks that attention was called in; the next call joins its ranks again.

    It waits for nobody: ranks that still wait for this one get `CommError`. Called at the end of the
    process."""
    _native.leave_groups()


atexit.register(leave_groups)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _forward_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sequence: torch.Tensor | None,
    max_logits: bool,
    call: str,
    *dropout: int,
) -> tuple[torch.Tensor, ...]:
    # The batch may be symbolic; tokens and heads belong to the plan.
    shape = {
        "batch": 1,
        "q_tokens": int(q.shape[1]),
        "kv_tokens": int(k.shape[1]),
        "heads": int(q.shape[2]),
        "kv_heads": int(k.shape[2]),
        "head_dim": int(q.shape[3]),
        "value_dim": int(v.shape[3]),
    }
    saved = _native.saved_shapes(shape, call)
    batch = q.shape[0]
    out = q.new_empty([batch, *q.shape[1:3], v.shape[3]])
    *own, lse = [[batch, *one[1:]] if one else [0] for one in saved]
    return (
        out,
        q.new_empty(lse, dtype=_accumulator(q.dtype)),
        *(q.new_empty(one) for one in own),
        q.new_empty([q.shape[2] if max_logits else 0], dtype=_accumulator(q.dtype)),
    )


def _backward_fake(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    kv_tokens: int,
    kv_heads: int,
    call: str,
    *dropout: int,
) -> tuple[torch.Tensor, ...]:
    batch, tokens, heads, value_dim = dout.shape
    head_dim = q.shape[3]
    return (
        dout.new_empty([batch, tokens, heads, head_dim]),
        dout.new_empty([batch, kv_tokens, kv_heads, head_dim]),
        dout.new_empty([batch, kv_tokens, kv_heads, value_dim]),
        dout.new_empty([0]) if sinks is None else torch.empty_like(sinks),
    )


def _gather_fake(mine: torch.Tensor, group: str, timeout_s: float) -> torch.Tensor:
    return mine.new_empty([_native.world_of(group), *mine.shape])


torch.library.register_fake("armillary::attention_forward", _forward_fake)
torch.library.register_fake("armillary::attention_backward", _backward_fake)
torch.library.register_fake("armillary::gather_over_ranks", _gather_fake)
