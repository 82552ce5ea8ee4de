"""Attention on one device, written plainly: what all results are compared with."""

import torch


def dense_mask(mask, tokens):
    """[S, S] bool of a mask of armillary.masks."""
    native = mask.at(tokens)
    dense = torch.zeros(tokens, tokens, dtype=torch.bool)
    q, k = torch.arange(tokens).unsqueeze(1), torch.arange(tokens).unsqueeze(0)
    for q_begin, q_end, k_begin, k_end, lo, hi in native.bands():
        rectangle = (q >= q_begin) & (q < q_end) & (k >= k_begin) & (k < k_end)
        dense |= rectangle & (k - q >= lo) & (k - q <= hi)
    return dense


def attention(q, k, v, dense, *, scale=None, softcap=None, alibi_slopes=None, sinks=None):
    """Output [B, S, H, E] of q [B, S, H, D], k [B, S, G, D], v [B, S, G, E], 0 for a query without keys."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        at = torch.arange(q.shape[1])
        distance = (at.unsqueeze(0) - at.unsqueeze(1)).abs().to(scores.dtype)
        scores = scores - alibi_slopes.to(scores.dtype).view(1, -1, 1, 1) * distance
    scores = scores.masked_fill(~dense, float("-inf"))
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    sees = torch.isfinite(scores).any(-1, keepdim=True)
    probabilities = torch.where(sees, scores, 0.0).softmax(-1) * sees
    return torch.einsum("bhqk,bkhe->bqhe", probabilities[..., : k.shape[1]], v)


def relative_error(actual, expected):
    """The largest difference over the largest value; 0 for empty tensors."""
    if expected.numel() == 0:
        return 0.0
    return float(
        (actual.double() - expected.double()).abs().max() / expected.double().abs().max().clamp_min(1e-30)
    )
