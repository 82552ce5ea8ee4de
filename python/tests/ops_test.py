"""The ops as PyTorch's own checkers see them: strategies x masks on two ranks."""

import ast
import io
import os
import pathlib

import pytest
import ranks
import torch
import torch.distributed as dist
from armillary._options import Options
from torch._dynamo.testing import CompileCounterWithBackend

import armillary
from armillary import masks

STRATEGIES = ("ring", "ulysses", "usp:u=2", "allgather", "auto:traffic")
MASKS = {
    "full": masks.full(),
    "causal": masks.causal(),
    "window": masks.causal() & masks.window(3),
    "documents": masks.documents([3, 4, 5]),
}
TOKENS = 12


class Replicated(torch.autograd.Function):
    """A tensor that every rank has; its gradient is the sum of those of the ranks."""

    @staticmethod
    def forward(ctx, whole):
        return whole.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def whole_qkv():
    generator = torch.Generator().manual_seed(5)
    shapes = [(1, TOKENS, heads, 4) for heads in (4, 2, 2)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [x.requires_grad_() for x in tensors]


def mine(sp):
    at = sp.positions(TOKENS)
    return [x.detach()[:, at].requires_grad_() for x in whole_qkv()]


def gradcheck(sp):
    """Attention of the whole sequence, as every rank perturbs the same numbers at the same time."""
    at = sp.positions(TOKENS)

    def attend(*whole):
        out = sp.attention(*(Replicated.apply(x)[:, at] for x in whole))
        return sp.unshard(out, reduce="sum")

    torch.manual_seed(0)
    return torch.autograd.gradcheck(attend, whole_qkv(), fast_mode=True)


def opcheck(sp):
    call = sp._call(Options(scale=0.3), sp.mask.text_at(TOKENS), (TOKENS, TOKENS), 4)
    op = torch.ops.armillary.attention_forward.default
    inputs = (*mine(sp), None, None, torch.tensor(7), True)
    return set(torch.library.opcheck(op, (*inputs, *call)).values()) == {"SUCCESS"}


def compiled(sp):
    """Forward and backward as one graph: the bits of the call without a compiler."""
    torch._dynamo.reset()

    def layer(q, k, v):
        return sp.attention(q * 2, k, v).sin()

    results = []
    for attend in (torch.compile(layer, fullgraph=True, backend="aot_eager"), layer):
        inputs = mine(sp)
        out = attend(*inputs)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class Layer(torch.nn.Module):
    def __init__(self, sp):
        super().__init__()
        self.sp = sp

    def forward(self, q, k, v):
        return self.sp.attention(q, k, v)


def cross(sp):
    """Keys of another sequence, with the largest logits: as one graph, and as an exported program."""
    torch._dynamo.reset()
    q, k, v = (x.detach() for x in mine(sp))
    at = sp.positions(8)
    inputs = (q, *(x[:, :8][:, : len(at)].contiguous() for x in (k, v)))

    class Cross(torch.nn.Module):
        def forward(self, q, k, v):
            return sp.attention_and_max_logits(q, k, v, mask="full", kv_seq_len=8)

    expected = Cross()(*inputs)
    ways = (
        torch.compile(Cross(), fullgraph=True, backend="aot_eager"),
        torch.export.export(Cross(), inputs).module(),
    )
    return all(torch.equal(a, b) for way in ways for a, b in zip(way(*inputs), expected, strict=True))


def exported(sp):
    """A program that holds the op as one node and computes the same bits."""
    inputs = tuple(x.detach() for x in mine(sp))
    program = torch.export.export(Layer(sp), inputs)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    has_op = torch.ops.armillary.attention_forward.default in targets
    return has_op and torch.equal(program.module()(*inputs), sp.attention(*inputs))


CHECKS = {"gradcheck": gradcheck}
# Slow: each strategy with one mask, each mask.
TRACED = {"opcheck": opcheck, "compiled": compiled, "exported": exported}


def verdicts(rank, world):
    answers = {}
    for at, strategy in enumerate(STRATEGIES):
        for of_mask, (name, mask) in enumerate(MASKS.items()):
            sp = armillary.SequenceParallel(strategy=strategy, mask=mask)
            is_traced = of_mask == at % len(MASKS) or os.environ.get("ARMILLARY_TEST_ALL")
            for check, run in (CHECKS | TRACED if is_traced else CHECKS).items():
                answers[strategy, name, check] = run(sp)
    return answers


def test_every_strategy_and_mask():
    for rank, answers in enumerate(ranks.run(2, verdicts)):
        assert len(answers) == (80 if os.environ.get("ARMILLARY_TEST_ALL") else 35)
        for case, is_right in answers.items():
            assert is_right, f"rank {rank}: {case}"


def one_graph(rank, world):
    """The loss in the graph; and the default compiler, without kernels of its own, whose build is slow."""
    sp = armillary.SequenceParallel()

    def with_loss(q, k, v, logits):
        labels = torch.arange(6).reshape(1, 6) % 5
        return sp.attention(q, k, v).square().sum() + sp.loss(logits, labels)

    def attend(q, k, v, logits):
        return sp.attention(q, k, v)

    worst = 0.0
    for step, backend in ((with_loss, "aot_eager"), (attend, "inductor")):
        results = []
        for one in (torch.compile(step, fullgraph=True, backend=backend), step):
            logits = torch.linspace(0, 1, 30).reshape(1, 6, 5).requires_grad_()
            inputs = [*mine(sp), logits]
            value = one(*inputs)
            results.append([value, *torch.autograd.grad(value.sum(), inputs, allow_unused=True)[:3]])
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(*results, strict=True)))
    return worst


def test_one_graph():
    assert max(ranks.run(2, one_graph)) < 1e-12


# Strategies and masks, each at least once; all of them with ./dev test --all.
INDUCTOR = [
    ("ring", "causal"),
    ("ulysses", "full"),
    ("usp:u=2", "documents"),
    ("allgather", "window"),
    ("auto:traffic", "documents"),
]
if os.environ.get("ARMILLARY_TEST_ALL"):
    INDUCTOR = [(strategy, mask) for strategy in STRATEGIES for mask in MASKS]


def with_inductor(sp, layer, batches=(1,)):
    """Largest difference to the call without a compiler, of output and gradients, and the graphs compiled."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    attend = torch.compile(layer, fullgraph=True, backend=counter)
    worst = 0.0
    for batch in batches:
        results = []
        for one in (attend, layer):
            inputs = [x.detach().repeat(batch, 1, 1, 1).requires_grad_() for x in mine(sp)]
            out = one(*inputs)
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(*results, strict=True)))
    return worst, counter.frame_count


def inductor(rank, world):
    """Attention alone in the graph, in both formats."""
    answers = {}
    for strategy, mask in INDUCTOR:
        sp = armillary.SequenceParallel(strategy=strategy, mask=MASKS[mask])
        answers[strategy, mask] = with_inductor(sp, sp.attention)
        answers[strategy, mask, "BHLD"] = with_inductor(
            sp, lambda *qkv, sp=sp: sp.attention(*(x.transpose(1, 2) for x in qkv), format="BHLD")
        )
    sp = armillary.SequenceParallel(strategy="ring")
    answers["a symbolic batch"] = with_inductor(sp, sp.attention, batches=(2, 3, 5, 4))
    if os.environ.get("ARMILLARY_TEST_ALL"):  # kernels of its own take the C++ compiler a minute
        answers["kernels around it"] = with_inductor(sp, lambda q, k, v: sp.attention(q * 2, k, v).sin())
    return answers


def test_inductor():
    for rank, answers in enumerate(ranks.run(2, inductor)):
        assert len(answers) > 2 * len(INDUCTOR)
        for case, (difference, graphs) in answers.items():
            assert difference < 1e-12, f"rank {rank}, {case}: {difference}"
            assert graphs <= (2 if case == "a symbolic batch" else 1), f"rank {rank}, {case}: {graphs} graphs"


@pytest.fixture
def sp():
    return armillary.SequenceParallel(strategy="ring")


def test_one_rank(sp):
    assert opcheck(sp) and compiled(sp) and exported(sp) and cross(sp)
    assert torch.autograd.gradcheck(lambda *inputs: sp.attention(*inputs), whole_qkv(), fast_mode=True)


def test_shapes_of_another_batch_are_compiled_once(sp):
    """The batch is symbolic; tokens and heads belong to the plan."""
    compiles = []

    def backend(graph, inputs):
        compiles.append(graph)
        return graph.forward

    torch._dynamo.reset()
    attend = torch.compile(lambda q, k, v: sp.attention(q, k, v) + 1, backend=backend, fullgraph=True)
    for batch in (2, 3, 4, 5):
        q, k, v = (x.detach().expand(batch, -1, -1, -1) for x in whole_qkv())
        assert torch.equal(attend(q, k, v), sp.attention(q, k, v) + 1)
    assert len(compiles) <= 2


def test_tokens_are_compiled_for_each_length_and_refused_as_dynamic(sp):
    """A plan belongs to its lengths, so another length is another graph."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    attend = torch.compile(lambda q, k, v: sp.attention(q, k, v), backend=counter, fullgraph=True)
    for tokens in (4, 8, 12, 8):
        inputs = [x.detach()[:, :tokens].contiguous().requires_grad_() for x in whole_qkv()]
        gradients = [torch.autograd.grad(one(*inputs).sum(), inputs) for one in (attend, sp.attention)]
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True)), tokens
    assert counter.frame_count == 3
    torch._dynamo.reset()
    q, k, v = (x.detach() for x in whole_qkv())
    torch._dynamo.mark_dynamic(q, 1)
    with pytest.raises(Exception, match="specializ"):
        torch.compile(lambda q: sp.attention(q, k, v), backend="aot_eager", fullgraph=True)(q)


def test_a_graph_serves_every_sequence(sp):
    """The digest of a sequence is no constant of the graph."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    attend = torch.compile(lambda x, deal: sp.attention(x, x, x, deal=deal), backend=counter, fullgraph=True)
    for step in range(3):
        x = torch.randn(1, TOKENS, 2, 4)
        deal = sp.shard(input_ids=torch.arange(TOKENS).unsqueeze(0) + step).deal
        assert torch.equal(attend(x, deal), sp.attention(x, x, x))
    assert counter.frame_count == 1


def test_a_program_that_was_saved_needs_no_object(sp):
    """All that a call is stands in its arguments."""
    inputs = tuple(x.detach() for x in mine(sp))
    file = io.BytesIO()
    torch.export.save(torch.export.export(Layer(sp), inputs), file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(*inputs), sp.attention(*inputs))


@pytest.mark.parametrize(
    ("spoilt", "text"),
    [
        (("layout=", "lay="), r"'lay=zigzag'; layout=.. is required"),
        (("scale=0.3", "scale=much"), "scale is 'much'; a number is required"),
        (("proofs=", ""), r"''; proofs=.. is required"),
        (("q_len=12", "q_len=twelve"), "q_len"),
    ],
)
def test_a_text_that_stands_for_no_call_is_refused(sp, spoilt, text):
    call, *dropout = sp._call(Options(scale=0.3), "causal", (TOKENS, TOKENS), 4)
    inputs = (x.detach() for x in mine(sp))
    with pytest.raises(armillary.InvalidArgument, match=text):
        torch.ops.armillary.attention_forward(
            *inputs, None, None, None, False, call.replace(*spoilt), *dropout
        )


def test_proofs_and_plans():
    assert armillary.verify("usp:u=2", world=4, seq=64, heads=4)
    plan = armillary.plan("ring", world=2, seq=8, heads=2)
    assert armillary.Plan.from_json(plan.to_json()).to_json() == plan.to_json()
    assert "rank 0" in str(plan) and "<pre" in plan._repr_html_()
    assert "ring" in [row.strategy for row in armillary.compare(world=4, seq=64, heads=4)]


def test_the_stubs_name_what_the_module_has():
    stubs = pathlib.Path(armillary.__file__).with_name("_native.pyi").read_text()
    told = set()
    for node in ast.parse(stubs).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            told.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            told.add(node.target.id)
    assert told == {name for name in dir(armillary._native) if not name.startswith("__")}
