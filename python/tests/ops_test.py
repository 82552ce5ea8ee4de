"""The ops as PyTorch's own checkers see them, on one rank."""

import pytest
import torch

import armillary

TOKENS = 16


@pytest.fixture
def qkv():
    generator = torch.Generator().manual_seed(5)
    shapes = [(1, TOKENS, heads, 8) for heads in (4, 2, 2)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x.requires_grad_() for x in made]


@pytest.fixture
def sp():
    return armillary.SequenceParallel(strategy="ring")


def test_opcheck(qkv):
    call = ("", "ring", "zigzag", "causal", TOKENS, TOKENS, "accumulator", 0.3, None, 0.0, 0, 0, 60.0, "")
    verdicts = torch.library.opcheck(torch.ops.armillary.attention_forward.default, (*qkv, None, None, *call))
    assert set(verdicts.values()) == {"SUCCESS"}, verdicts


def test_gradcheck(qkv, sp):
    assert torch.autograd.gradcheck(lambda *inputs: sp.attention(*inputs), qkv)


def test_compiled_as_one_graph(qkv, sp):
    compiled = torch.compile(lambda *inputs: sp.attention(*inputs) * 2, fullgraph=True, backend="aot_eager")
    results = []
    for attend in (compiled, lambda *inputs: sp.attention(*inputs) * 2):
        out = attend(*qkv)
        results.append([out, *torch.autograd.grad(out.square().sum(), qkv)])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_export(qkv, sp):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return sp.attention(q, k, v)

    exported = torch.export.export(Model(), tuple(qkv))
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert torch.ops.armillary.attention_forward.default in targets


def test_second_derivatives_are_refused(qkv, sp):
    (gradient,) = torch.autograd.grad(sp.attention(*qkv).sum(), qkv[0], create_graph=True)
    with pytest.raises(armillary.InvalidArgument, match="a second derivative was asked for"):
        gradient.sum().backward()


def test_autocast_to_another_dtype_is_refused(qkv, sp):
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(armillary.InvalidArgument, match="q is Double in a region of autocast to BFloat16"),
    ):
        sp.attention(*qkv)


def test_proofs_and_plans():
    assert armillary.verify("usp:u=2", world=4, seq=64, heads=4)
    plan = armillary.plan("ring", world=2, seq=8, heads=2)
    assert armillary.Plan.from_json(plan.to_json()).to_json() == plan.to_json()
    assert "rank 0" in str(plan) and "<pre" in plan._repr_html_()
    assert "ring" in [row.strategy for row in armillary.compare(world=4, seq=64, heads=4)]
