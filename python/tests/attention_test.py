"""Attention over ranks equals attention on one device."""

import itertools

import pytest
import ranks
import reference
import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import create_block_mask

import armillary

STRATEGIES = ("ring", "ulysses", "usp:u=2", "allgather", "auto:traffic")
MASKS = {
    "full": armillary.masks.full(),
    "causal": armillary.masks.causal(),
    "window": armillary.masks.causal() & armillary.masks.window(5),
    "documents": armillary.masks.documents([3, 10, 11]),
}
TOKENS = 24
IDS = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 10, 11]))


def tensors(dtype=torch.float64, heads=4, kv_heads=2):
    generator = torch.Generator().manual_seed(3)
    shapes = [(heads, 8), (kv_heads, 8), (kv_heads, 6), (heads, 6)]
    return [torch.randn(2, TOKENS, *shape, generator=generator).to(dtype) for shape in shapes]


def errors_against_one_device(sp, mask, layout_format="BLHD", **features):
    """Relative errors of out, dq, dk, dv of this rank."""
    *inputs, dout = tensors()
    whole = [x.clone().requires_grad_() for x in inputs]
    expected = reference.attention(*whole, reference.dense_mask(mask, TOKENS), **features)
    expected.backward(dout)
    at = sp.positions(TOKENS, mask)
    mine = [x[:, at].clone() for x in inputs]
    dout = dout[:, at]
    if layout_format == "BHLD":
        mine, dout = [x.transpose(1, 2).contiguous() for x in mine], dout.transpose(1, 2)
    mine = [x.requires_grad_() for x in mine]
    out = sp.attention(*mine, mask=mask, format=layout_format, **features)
    out.backward(dout)
    got = [out.detach(), *(x.grad for x in mine)]
    if layout_format == "BHLD":
        got = [x.transpose(1, 2) for x in got]
    exact = [expected.detach()[:, at], *(x.grad[:, at] for x in whole)]
    return [reference.relative_error(a, b) for a, b in zip(got, exact, strict=True)]


def every_strategy_and_mask(rank, world):
    worst = {}
    for strategy in STRATEGIES:
        if strategy == "usp:u=2" and world % 2:
            continue
        for name, mask in MASKS.items():
            sp = armillary.SequenceParallel(strategy=strategy, mask=mask)
            for layout_format in ("BLHD", "BHLD"):
                errors = errors_against_one_device(sp, mask, layout_format)
                worst[strategy, name, layout_format] = max(errors)
    return worst


def with_features(rank, world):
    sp = armillary.SequenceParallel(strategy="usp:u=2")
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    worst = {}
    for name, features in {
        "scale": {"scale": 0.3},
        "softcap": {"softcap": 2.0},
        "alibi": {"alibi_slopes": slopes},
        "sinks": {"sinks": torch.linspace(-1, 1, 4, dtype=torch.float64)},
    }.items():
        worst[name] = max(errors_against_one_device(sp, MASKS["causal"], **features))
    return worst


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_strategy_and_mask(world):
    for rank, worst in enumerate(ranks.run(world, every_strategy_and_mask)):
        for case, error in worst.items():
            assert error <= 1e-12, f"rank {rank} of {world}, {case}: {error}"


def test_features():
    for rank, worst in enumerate(ranks.run(2, with_features)):
        for case, error in worst.items():
            assert error <= 1e-12, f"rank {rank}, {case}: {error}"


def other_ways(rank, world):
    """Errors of calls that say the same in another way, against the plain call."""
    sp = armillary.SequenceParallel(strategy="usp:u=2")
    alone = armillary.SequenceParallel(dist.new_group([rank], use_local_synchronization=True))
    at = sp.positions(TOKENS)
    whole = tensors()[:3]
    mine = [x[:, at] for x in whole]
    packed = MASKS["documents"]
    worst = {}

    def compare(name, out, exact):
        worst[name] = reference.relative_error(out, exact)

    # Dropped probabilities are those of one device, and others for another step.
    dropped = {"dropout": 0.3, "dropout_seed": 5}
    out = sp.attention(*mine, **dropped)
    compare("dropout", out, alone.attention(*whole, **dropped)[:, at])
    another = sp.attention(*mine, dropout_step=1, **dropped)
    worst["another step"] = 0.0 if not torch.allclose(another, out) else 1.0

    exact = sp.attention(*mine, mask=packed)
    for dtype in (torch.int32, torch.int64):
        begins = torch.tensor([0, 3, 13, 24], dtype=dtype)
        compare(f"cu_seqlens {dtype}", sp.attention(*mine, cu_seqlens=begins), exact)
    block_mask = create_block_mask(
        lambda b, h, q, k: (IDS[q] == IDS[k]) & (q >= k), None, None, TOKENS, TOKENS, device="cpu"
    )
    compare("a BlockMask", sp.attention(*mine, mask=block_mask), exact)
    dense = reference.dense_mask(packed, TOKENS)
    compare("a dense mask", sp.attention(*mine, mask=dense), exact)
    batch = sp.shard(ids=torch.zeros(2, TOKENS), document_ids=IDS.expand(2, -1))
    compare("document_ids", sp.attention(*mine, mask=batch.mask), exact)

    plain = sp.attention(*mine)
    strided = [torch.stack([x, -x], -1)[..., 0] for x in mine]
    compare("strides of 2", sp.attention(*strided), plain)
    flipped = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in mine]
    compare("tokens are the last dim in memory", sp.attention(*flipped), plain)
    q, k, v = [x[:1] for x in mine]
    expanded = [q.expand(2, -1, -1, -1), k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1)]
    compare("strides of 0", sp.attention(*expanded), sp.attention(q, k, v).expand(2, -1, -1, -1))
    return worst


def test_other_ways_to_say_the_same():
    for rank, worst in enumerate(ranks.run(2, other_ways)):
        for case, error in worst.items():
            assert error <= 1e-12, f"rank {rank}, {case}: {error}"


CROSS = {
    "full": lambda q, k: torch.ones(q, k, dtype=torch.bool),
    "causal:align=start": lambda q, k: torch.ones(q, k).tril().bool(),
    "causal:align=end": lambda q, k: torch.ones(q, k).tril(k - q).bool(),
}


def cross(rank, world):
    """Errors of out, gradients and largest logits of queries over the keys of another sequence."""
    worst = {}
    for kv_tokens, (mask, dense), strategy in itertools.product(
        (6, 31), CROSS.items(), ("ring", "ulysses", "auto:traffic")
    ):
        sp = armillary.SequenceParallel(strategy=strategy)
        q, k, v, dout = (x.clone() for x in tensors())
        k, v = (torch.cat([x, x.flip(2) / 2], 1)[:, :kv_tokens].contiguous() for x in (k, v))
        whole = [x.requires_grad_() for x in (q, k, v)]
        sees = dense(TOKENS, kv_tokens)
        exact = reference.attention(*whole, sees)
        exact.backward(dout)
        scores = torch.einsum("bqhd,bkhd->hbqk", q, k.repeat_interleave(2, 2)) / 8**0.5
        largest = scores.masked_fill(~sees, float("-inf")).flatten(1).amax(1).detach()
        at, kv_at = sp.positions(TOKENS), sp.positions(kv_tokens)
        mine = [x.detach()[:, p].requires_grad_() for x, p in zip(whole, (at, kv_at, kv_at), strict=True)]
        out, logits = sp.attention_and_max_logits(*mine, mask=mask, seq_len=TOKENS, kv_seq_len=kv_tokens)
        plain = sp.attention(*mine, mask=mask, seq_len=TOKENS, kv_seq_len=kv_tokens)
        out.backward(dout[:, at])
        pairs = [(out, exact[:, at]), (plain, out), (logits, largest)]
        pairs += [(a.grad, b.grad[:, p]) for a, b, p in zip(mine, whole, (at, kv_at, kv_at), strict=True)]
        case = (kv_tokens, mask, strategy)
        worst[case] = max(reference.relative_error(a.detach(), b.detach()) for a, b in pairs)
        assert not logits.requires_grad and logits.dtype == torch.float64
    return worst


@pytest.mark.parametrize("world", [1, 3])
def test_keys_of_another_sequence_and_largest_logits(world):
    for rank, worst in enumerate(ranks.run(world, cross)):
        assert len(worst) == 18
        for case, error in worst.items():
            assert error <= 1e-12, f"rank {rank} of {world}, {case}: {error}"


def test_one_rank_needs_no_group():
    sp = armillary.SequenceParallel(mask=MASKS["documents"])
    assert max(errors_against_one_device(sp, MASKS["documents"])) <= 1e-12
