"""Code that calls scaled_dot_product_attention, over ranks as it is."""

import pytest
import ranks
import reference
import torch
from torch.nn import functional

import armillary

TOKENS = 24
SHAPES = [(2, heads, TOKENS, 8) for heads in (4, 2, 2)]


class Model(torch.nn.Module):
    """Knows nothing of ranks."""

    def forward(self, q, k, v, **settings):
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **settings)


def tensors():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def patched(rank, world):
    sp = armillary.SequenceParallel(strategy="ring")
    at, errors = sp.positions(TOKENS), []
    for is_causal in (True, False):
        inputs = tensors()
        whole = [x.clone().requires_grad_() for x in inputs]
        expected = Model()(*whole, is_causal=is_causal, scale=0.4)
        expected.square().sum().backward()
        mine = [x[:, :, at].clone().requires_grad_() for x in inputs]
        with sp.patch_sdpa(mask="causal" if is_causal else "full") as patch:
            out = Model()(*mine, is_causal=is_causal, scale=0.4)
        out.square().sum().backward()
        assert patch.calls == 1
        errors.append(reference.relative_error(out.detach(), expected.detach()[:, :, at]))
        errors += [
            reference.relative_error(a.grad, b.grad[:, :, at]) for a, b in zip(mine, whole, strict=True)
        ]
    return max(errors)


def test_equals_one_device():
    for rank, error in enumerate(ranks.run(2, patched)):
        assert error <= 1e-12, f"rank {rank}: {error}"


REFUSED = {
    "attn_mask": (
        {"attn_mask": torch.ones(TOKENS, TOKENS, dtype=torch.bool)},
        r"attn_mask \[24, 24\] is given",
    ),
    "not causal": ({}, "scaled_dot_product_attention is bidirectional"),
    "dropout": ({"is_causal": True, "dropout_p": 0.1}, "dropout_p is 0.1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_undeclared_masks_are_refused(case):
    settings, match = REFUSED[case]
    sp = armillary.SequenceParallel()
    with pytest.raises(armillary.InvalidArgument, match=match), sp.patch_sdpa():
        Model()(*tensors(), **settings)


def test_no_call_is_an_error():
    sp = armillary.SequenceParallel()
    with pytest.raises(armillary.InvalidArgument, match="was not called"), sp.patch_sdpa():
        pass


def test_modules_that_attend_by_themselves_are_refused():
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 4, 8)
    sp = armillary.SequenceParallel()
    with pytest.raises(armillary.InvalidArgument, match="MultiheadAttention is called"), sp.patch_sdpa():
        attention(x, x, x)
