"""Attention over ranks equals attention on one device."""

import pytest
import ranks
import reference
import torch

import armillary

STRATEGIES = ("ring", "ulysses", "usp:u=2", "allgather", "auto:traffic")
MASKS = {
    "full": armillary.masks.full(),
    "causal": armillary.masks.causal(),
    "window": armillary.masks.causal() & armillary.masks.window(5),
    "documents": armillary.masks.documents([3, 10, 11]),
}
TOKENS = 24


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
    wanted = [expected.detach()[:, at], *(x.grad[:, at] for x in whole)]
    return [reference.relative_error(a, b) for a, b in zip(got, wanted, strict=True)]


def every_strategy_and_mask(rank, world):
    worst = {}
    for strategy in STRATEGIES:
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


@pytest.mark.parametrize("world", [2, 4])
def test_every_strategy_and_mask(world):
    for rank, worst in enumerate(ranks.run(world, every_strategy_and_mask)):
        for case, error in worst.items():
            assert error <= 1e-12, f"rank {rank} of {world}, {case}: {error}"


def test_features():
    for rank, worst in enumerate(ranks.run(2, with_features)):
        for case, error in worst.items():
            assert error <= 1e-12, f"rank {rank}, {case}: {error}"


def test_one_rank_needs_no_group():
    sp = armillary.SequenceParallel(mask=MASKS["documents"])
    assert max(errors_against_one_device(sp, MASKS["documents"])) <= 1e-12
