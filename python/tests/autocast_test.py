"""Attention under autocast: the dtypes of scaled_dot_product_attention, the values of one device."""

import itertools

import ranks
import reference
import torch
from torch.nn import functional

import armillary

TOKENS = 24
F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
INPUTS = [(F32, F32, F32), (BF16, F32, BF16), (BF16,) * 3, (F64,) * 3, (F16, F32, F32)]
FACTOR = 2.5  # error of a narrow dtype, over that of one device


def tensors(dtypes, device_dtype=None):
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(2, TOKENS, 2, 8, generator=generator).to(dtype) for dtype in dtypes]
    return [x.to(device_dtype or x.dtype).requires_grad_() for x in inputs]


def sdpa(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def results(attend, inputs, narrow=None):
    """Output and gradients of the sum of its squares, under autocast to a dtype."""
    with torch.autocast("cpu", narrow, enabled=narrow is not None):
        out = attend(*inputs)
    return [out, *torch.autograd.grad(out.double().square().sum(), inputs)]


def ways(sp, dtypes, narrow):
    """Attention, called in each of the ways that a user has."""

    def patched(q, k, v):
        with sp.patch_sdpa():
            return sdpa(q, k, v)

    answers = {"attention": sp.attention, "patch_sdpa": patched}
    if narrow == BF16 and dtypes == INPUTS[1]:  # a graph of each takes seconds
        answers["compiled"] = torch.compile(sp.attention, backend="aot_eager", fullgraph=True)
    return answers


def under_autocast(rank, world):
    """Errors over their bounds, of results whose dtypes are those of one device."""
    sp = armillary.SequenceParallel(strategy="usp:u=2")
    at, answers = sp.positions(TOKENS), {}
    for dtypes, narrow in itertools.product(INPUTS, (BF16, F16)):
        exact = results(sdpa, tensors(dtypes, F64))
        one = results(sdpa, tensors(dtypes), narrow)
        for name, attend in ways(sp, dtypes, narrow).items():
            mine = [x.detach()[:, at].requires_grad_() for x in tensors(dtypes)]
            got = results(attend, mine, narrow)
            case = (name, *(str(dtype) for dtype in (*dtypes, narrow)))
            assert [x.dtype for x in got] == [x.dtype for x in one], case
            least = max(torch.finfo(got[0].dtype).eps / 2, 1e-13)
            answers[case] = max(
                reference.relative_error(a, c[:, at]) / (FACTOR * max(reference.relative_error(b, c), least))
                for a, b, c in zip(got, one, exact, strict=True)
            )
    return answers


def test_dtypes_and_values_are_those_of_one_device():
    for rank, answers in enumerate(ranks.run(2, under_autocast)):
        assert len(answers) == 21
        for case, ratio in answers.items():
            assert ratio <= 1, f"rank {rank}, {case}: {ratio} of the bound"


def test_sinks_and_slopes_keep_their_dtype():
    sp = armillary.SequenceParallel(strategy="ring")
    sinks = torch.linspace(-1, 1, 2, requires_grad=True)
    features = {"alibi_slopes": torch.tensor([0.5, 0.25]), "sinks": sinks}
    inputs = tensors((F32,) * 3)
    with torch.autocast("cpu", BF16):
        out = sp.attention(*inputs, **features)
    narrow = [x.detach().to(BF16).requires_grad_() for x in inputs]
    expected = sp.attention(*narrow, **features)
    assert torch.equal(out, expected)
    got = torch.autograd.grad(out.float().square().sum(), [*inputs, sinks])
    by_hand = torch.autograd.grad(expected.float().square().sum(), [*narrow, sinks])
    assert [x.dtype for x in got] == [F32] * 4
    assert all(torch.equal(a, b.float()) for a, b in zip(got, by_hand, strict=True))
