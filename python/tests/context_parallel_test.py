"""The assertions of PyTorch's own tests of context parallel, with our attention in the place of theirs
(test/distributed/tensor/test_attention.py).

Their sizes and tolerances: 64 tokens a rank, 8 heads of 32, a batch of 8; bf16 as for the flash kernel, fp32
as for the efficient one. Their rotations are our strategies, their load balance is zigzag. Numbers of
collectives, which they also count, are those of their implementation and are not asserted. Four ranks: their
bound for bf16 grows with the world, and on two it is below a unit in the last place of the output. The
expected values of bf16 are computed in fp32: PyTorch's kernel for CPUs sums gradients in bf16."""

import itertools
import os

import ranks
import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import armillary

BATCH, TOKENS, HEADS, DIM = 8, 64, 8, 32
ROTATIONS = {"all-to-all": "ring", "all-gather": "allgather"}
TOLERANCES = {
    torch.bfloat16: (1e-3, 8e-3),
    torch.float32: (1e-8, 2e-6),
}  # forward, backward; bf16 times the world


ALL = os.environ.get("ARMILLARY_TEST_ALL")


def random_qkv(world, dtype):
    torch.manual_seed(10)
    return [torch.rand(BATCH, HEADS, world * TOKENS, DIM, dtype=dtype).requires_grad_() for _ in range(3)]


def both_passes(function, inputs, forward_only):
    """The output, and the gradients of its sum."""
    if forward_only:
        with torch.no_grad():
            return [function(*inputs)]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out.sum(), inputs)]


def is_close(sp, got, expected, dtype):
    forward, backward = (bound * (sp.world if dtype == torch.bfloat16 else 1) for bound in TOLERANCES[dtype])
    bounds = [forward, backward, backward, backward]
    wholes = [sp.unshard(x, dim=2) for x in got]
    return all(torch.allclose(a, b, atol=c) for a, b, c in zip(expected, wholes, bounds, strict=False))


def attention_of(sp, compiled):
    """As theirs, a function of q, k, v in BHLD."""

    def attend(q, k, v):
        return sp.attention(q, k, v, format="BHLD")

    return torch.compile(attend, fullgraph=True, backend="aot_eager") if compiled else attend


def sdpa(rank, world):
    """test_ring_attention_sdpa."""
    verdicts = {}
    for dtype, is_causal, forward_only in itertools.product(TOLERANCES, (True, False), (True, False)):
        whole = random_qkv(world, dtype)
        one = lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)  # noqa: E731, B023
        exact = [x.detach().float().requires_grad_() for x in whole]
        expected = [x.to(dtype) for x in both_passes(one, exact, forward_only)]
        for rotation, is_balanced, compiled in itertools.product(ROTATIONS, (True, False), (True, False)):
            if (is_balanced and not is_causal) or (compiled and dtype == torch.bfloat16):
                continue
            # By default a compiled function is compared once for each rotation and layout.
            if compiled and is_balanced != (rotation == "all-to-all") and not ALL:
                continue
            torch._dynamo.reset()
            layout = "zigzag" if is_balanced else "contiguous"
            mask = "causal" if is_causal else "full"
            sp = armillary.SequenceParallel(strategy=ROTATIONS[rotation], layout=layout, mask=mask)
            at = sp.positions(world * TOKENS)
            mine = [x.detach()[:, :, at].requires_grad_() for x in whole]
            got = both_passes(attention_of(sp, compiled), mine, forward_only)
            case = (str(dtype), is_causal, forward_only, rotation, is_balanced, compiled)
            verdicts[case] = is_close(sp, got, expected, dtype)
    return verdicts


def flex(rank, world):
    """test_cp_flex_attention: a causal mask, and a mask of documents, as BlockMasks."""
    tokens = world * TOKENS
    lengths = torch.tensor([tokens // 4, tokens // 2 - 7, tokens // 4 + 7])
    ids = torch.repeat_interleave(torch.arange(3), lengths)
    mods = {
        "causal": lambda b, h, q, k: q >= k,
        "documents": lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k),
    }
    verdicts = {}
    for name, mod in mods.items():
        block_mask = create_block_mask(mod, None, None, tokens, tokens, device="cpu", BLOCK_SIZE=32)
        whole = [x.detach() for x in random_qkv(world, torch.float32)]
        expected = [flex_attention(*whole, block_mask=block_mask)]
        for layout in ("contiguous", "zigzag"):
            sp = armillary.SequenceParallel(strategy="allgather", layout=layout, mask=block_mask)
            at = sp.positions(tokens)
            got = [sp.attention(*(x[:, :, at] for x in whole), format="BHLD")]
            verdicts[name, layout] = is_close(sp, got, expected, torch.float32)
    return verdicts


def test_scaled_dot_product_attention():
    for rank, verdicts in enumerate(ranks.run(4, sdpa)):
        assert len(verdicts) == (36 if ALL else 30)
        for case, is_right in verdicts.items():
            assert is_right, f"rank {rank}: {case}"


def test_flex_attention():
    for rank, verdicts in enumerate(ranks.run(4, flex)):
        for case, is_right in verdicts.items():
            assert is_right, f"rank {rank}: {case}"
