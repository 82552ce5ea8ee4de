"""Attention that takes K, V and Q one by one."""

import os
import socket
import struct
import time

import pytest
import ranks
import reference
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import armillary

TOKENS = 24
MASK = armillary.masks.causal()


def tensors(dtype=torch.float64):
    """q, k, v and the gradient of the output, of the whole sequence."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(6, 8), (6, 8), (6, 5), (6, 5)]
    return [torch.randn(2, TOKENS, *shape, generator=generator).to(dtype) for shape in shapes]


def mine(sp, whole):
    at = sp.positions(TOKENS, MASK)
    return [x[:, at].clone().requires_grad_() for x in whole]


def fed(sp, q, k, v, **settings):
    with sp.begin(heads=6, value_dim=5, **settings) as call:
        call.feed_k(k)
        call.feed_v(v)
        return call.finish(q)


def attended(sp, rank):
    """Whether a call on all ranks is right: the group is as good as new."""
    q, k, v, _ = whole = tensors()
    expected = reference.attention(q, k, v, reference.dense_mask(MASK, TOKENS))
    out = sp.attention(*mine(sp, whole)[:3])
    return reference.relative_error(out.detach(), expected[:, sp.positions(TOKENS, MASK)]) < 1e-12


def error_of(action):
    try:
        action()
    except armillary.errors.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


# Values and gradients


def one_device(sinks):
    *inputs, dout = tensors()
    inputs = [x.requires_grad_() for x in inputs]
    sinks = sinks.clone().requires_grad_()
    out = reference.attention(*inputs, reference.dense_mask(MASK, TOKENS), sinks=sinks)
    out.backward(dout)
    return [out.detach(), *(x.grad for x in inputs)], sinks.grad


def errors_against_one_device(sp, layout_format):
    """Relative errors of out, dq, dk, dv; this rank's share of the sinks' gradient; whether all of them have
    the bits of `attention`."""
    expected, _ = one_device(SINKS)
    dout = tensors()[3][:, sp.positions(TOKENS, MASK)]
    results = []
    for is_fed in (True, False):
        q, k, v, _ = mine(sp, tensors())
        sinks = SINKS.clone().requires_grad_()
        inputs = [x.transpose(1, 2) if layout_format == "BHLD" else x for x in (q, k, v)]
        attend = fed if is_fed else sp.attention
        if is_fed:
            out = attend(sp, *inputs, sinks=sinks, format=layout_format)
        else:
            out = attend(*inputs, sinks=sinks, format=layout_format)
        out = out.transpose(1, 2) if layout_format == "BHLD" else out
        out.backward(dout)
        results.append([out.detach(), q.grad, k.grad, v.grad, sinks.grad])
    at = sp.positions(TOKENS, MASK)
    errors = [reference.relative_error(a, b[:, at]) for a, b in zip(results[0], expected, strict=False)]
    return errors, results[0][-1], all(map(torch.equal, *results))


SINKS = torch.linspace(-1, 1, 6, dtype=torch.float64)


def every_strategy(rank, world):
    answers = {}
    for strategy in ("ring", f"attention2d:rows={world}", "ulysses"):
        sp = armillary.SequenceParallel(strategy=strategy, mask=MASK, timeout_s=20)
        for layout_format in ("BLHD", "BHLD"):
            answers[strategy, layout_format] = errors_against_one_device(sp, layout_format)
    sp = armillary.SequenceParallel(strategy="ring", mask=MASK, timeout_s=20)
    return answers, others_of(sp, rank)


def others_of(sp, rank):
    """Calls of other kinds, whether each is right."""
    whole = tensors(torch.float32)
    right = {}
    q, k, v, _ = mine(sp, whole)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, expected = fed(sp, q, k, v), sp.attention(q, k, v)
    right["autocast"] = out.dtype == torch.bfloat16 and torch.equal(out, expected)
    # Ranks may give all at once.
    one = fed(sp, q, k, v) if rank == 0 else sp.attention(q, k, v)
    right["some ranks alone feed"] = torch.equal(one, sp.attention(q, k, v))
    with torch.no_grad():
        right["no graph"] = fed(sp, q, k, v).grad_fn is None

    return right


def checkpointed(sp, rank):
    """Whether a call that is computed again in backward has the gradient of `attention`."""
    q, k, v, _ = mine(sp, tensors())
    again = checkpoint(lambda q, k, v: fed(sp, q, k, v), q, k, v, use_reentrant=False)
    again.sum().backward()
    gradient, q.grad = q.grad, None
    sp.attention(q, k, v).sum().backward()
    return torch.equal(gradient, q.grad)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_output_and_gradients_are_those_of_one_device(world):
    _, dsinks = one_device(SINKS)
    results = ranks.run(world, every_strategy)
    for of_rank, right in results:
        for name, (errors, _, same_bits) in of_rank.items():
            assert max(errors) < 1e-12 and same_bits, (name, errors, same_bits)
        assert all(right.values()), right
    for name in results[0][0]:
        shares = sum(answers[name][1] for answers, _ in results)
        assert reference.relative_error(shares, dsinks) < 1e-12, name


# Messages


def bytes_sent():
    """Bytes that peers have acknowledged on the TCP connections of this process."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        except OSError:
            continue
        total += struct.unpack_from("Q", info, 120)[0]  # tcpi_bytes_acked
    return total


def sent_before_finish(rank, world):
    """Bytes that this rank sent after feed_k, before it fed V, in units of its K."""
    sp = armillary.SequenceParallel(strategy="ulysses", mask="causal", timeout_s=90)
    q, k, v = torch.randn(3, 1, 2048, 4, 64).unbind()
    sp.attention(q, k, v)
    dist.barrier()
    before = -1
    while before != (now := bytes_sent()):  # Acknowledgements of the call before may be under way.
        before = now
        time.sleep(0.3)
    dist.barrier()
    before = bytes_sent()
    with sp.begin(heads=4) as call:
        call.feed_k(k)
        deadline = time.monotonic() + 60
        while bytes_sent() - before < k.nbytes / 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        sent_share = (bytes_sent() - before) / k.nbytes
        call.feed_v(v)
        out = call.finish(q)
    return sent_share, torch.equal(out, sp.attention(q, k, v))


def test_k_travels_before_v_and_q_are_fed():
    for sent_share, is_right in ranks.run(2, sent_before_finish):
        assert 0.5 <= sent_share < 0.6 and is_right, sent_share  # half of the heads, and agreement


# Refusals


def beside(other):
    """Another use of the group while a call is in progress, on all ranks."""

    def action(sp, rank):
        call = sp.begin(heads=6, value_dim=5)
        q, k, v, _ = mine(sp, tensors())
        early = error_of(lambda: call.feed_k(k))  # that of a rank which is ahead, if there is one
        if "nothing" not in early:
            return (early,)
        return error_of(lambda: other(sp, q, k, v)), error_of(lambda: call.feed_v(v))

    return action


def feeding(first=None, last=None, **settings):
    """A call whose inputs are changed by `first` on rank 0 and whose `last` comes in the place of finish."""

    def action(sp, rank):
        q, k, v, _ = (x.detach() for x in mine(sp, tensors()))
        if first and rank == 0:
            q, k, v = first(q, k, v)

        def run():
            with sp.begin(**({"heads": 6, "value_dim": 5} | settings)) as call:
                call.feed_k(k)
                call.feed_v(v)
                if last and rank == 0:
                    last(call, q, k, v)
                call.finish(q)

        return (error_of(run),)

    return action


def dropping(sp, rank):
    """Rank 0 fails in its own code between K and V."""
    q, k, v, _ = mine(sp, tensors())

    def run():
        with sp.begin(heads=6, value_dim=5) as call:
            call.feed_k(k)
            if rank == 0:
                raise ValueError("of the user")
            call.feed_v(v)
            call.finish(q)

    try:
        return (error_of(run),)
    except ValueError as error:
        return (f"ValueError: {error}",)


def forgetting(sp, rank):
    """Rank 0 loses its call without a word."""
    q, k, v, _ = mine(sp, tensors())

    def run():
        call = sp.begin(heads=6, value_dim=5)
        call.feed_k(k)
        if rank == 0:
            return
        call.feed_v(v)
        call.finish(q)

    heard = error_of(run)
    return ("a call was dropped before it had finished" if rank == 0 else heard,)


def failing_before(sp, rank):
    """Rank 0 fails in its own code before K."""
    q, k, v, _ = mine(sp, tensors())

    def run():
        with sp.begin(heads=6, value_dim=5) as call:
            if rank == 0:
                raise ValueError("of the user")
            call.feed_k(k)
            call.feed_v(v)
            call.finish(q)

    try:
        return (error_of(run),)
    except ValueError as error:
        return (f"ValueError: {error}",)


def giving_up(sp, rank):
    """Rank 0 drops its call inside its block, which then ends in peace."""
    q, k, v, _ = mine(sp, tensors())

    def run():
        with sp.begin(heads=6, value_dim=5) as call:
            call.feed_k(k)
            if rank == 0:
                call.drop("nobody wants it")
            else:
                call.feed_v(v)
                call.finish(q)

    heard = error_of(run)
    return (heard if rank else heard.replace("nothing was raised", "nobody wants it"),)


def giving_up_before(sp, rank):
    """A call that is dropped before K is none: nobody hears of it, and it takes nothing more."""
    _, k, _, _ = mine(sp, tensors())
    call = sp.begin(heads=6, value_dim=5)

    def run():
        with call:
            call.drop("too early")

    heard = error_of(run)
    late = error_of(lambda: call.feed_k(k))
    return heard, "nothing was raised" if "another call is required" in late else late


def going_on_after_a_failure(sp, rank):
    """K of 4 heads ends the call on all ranks; what comes after it tells nobody anything."""
    _, k, v, _ = mine(sp, tensors())
    call = sp.begin(heads=6, value_dim=5)
    first = error_of(lambda: call.feed_k(k[:, :, :4]))
    again = error_of(lambda: call.feed_v(v))
    return first, again.removeprefix("CommError: attention: the call has ended: ")


def leaving_early(sp, rank):
    _, k, v, _ = mine(sp, tensors())

    def run():
        with sp.begin(heads=6, value_dim=5) as call:
            call.feed_k(k)

    return (error_of(run),)


def compiled(sp, rank):
    """A graph that is compiled without its part is exact."""
    q, k, v, _ = (x.detach() for x in mine(sp, tensors()))
    out = torch.compile(lambda q, k, v: fed(sp, q, k, v), backend="eager")(q, k, v)
    right = torch.equal(out, sp.attention(q, k, v))
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (q, k, v)]
        return error_of(lambda: fed(sp, *fakes)), right


BUSY = "attention: another call is in progress on rank"
REFUSALS = {
    "attention beside it": (beside(lambda sp, q, k, v: sp.attention(q, k, v)), BUSY),
    "loss beside it": (
        beside(lambda sp, q, k, v: sp.loss(torch.zeros(1, 4, 5), torch.zeros(1, 4).long())),
        BUSY,
    ),
    "unshard beside it": (beside(lambda sp, q, k, v: sp.unshard(k)), BUSY),
    "another begin": (beside(lambda sp, q, k, v: sp.begin(heads=6, value_dim=5).feed_k(k)), BUSY),
    "left early": (leaving_early, "begin: the call was left before feed_v"),
    "dropped inside its block": (giving_up, "nobody wants it"),
    "dropped before it began": (giving_up_before, "nothing was raised"),
    "gone on with after a failure": (going_on_after_a_failure, "multiple of kv_heads"),
    "dropped by an exception": (dropping, "of the user"),
    "dropped before K": (failing_before, "of the user"),
    "forgotten": (forgetting, "dropped before it had finished"),
}


# Those of rank 0 at a point at which others may need nothing more of it.
LATE = {
    "V of another dim": (feeding(lambda q, k, v: (q, k, v[..., 1:])), "executor: v is Double of"),
    "V of 3 dims": (feeding(lambda q, k, v: (q, k, v[0])), "attention: v has 3 dims"),
    "Q of other heads": (feeding(lambda q, k, v: (q[:, :, 1:], k, v)), "finish is given q"),
    "K written to": (feeding(last=lambda call, q, k, v: k.add_(1)), "finish: k was written to"),
    "V twice": (feeding(last=lambda call, q, k, v: call.feed_v(v)), "finish is required"),
    "twice finished": (
        feeding(last=lambda call, q, k, v: (call.finish(q), call.finish(q))),
        "another call is required",
    ),
    "cross-attention": (feeding(kv_seq_len=3), "begin: kv_seq_len is no setting"),
    "heads of another kind": (feeding(heads=None), "begin: heads is None"),
}


def every_refusal(rank, world):
    sp = armillary.SequenceParallel(strategy="ring", mask=MASK, timeout_s=20)
    answers = {}
    for name, (action, _) in (REFUSALS | LATE).items():
        errors = action(sp, rank)
        if (
            name in LATE and "nothing" in errors[0]
        ):  # All that this rank needed was there: it hears in its next call.
            errors = (error_of(lambda: attended(sp, rank)),)
        dist.barrier()
        answers[name] = (errors, attended(sp, rank))
        dist.barrier()
    return answers, (*compiled(sp, rank), checkpointed(sp, rank)) if world == 1 else None


@pytest.mark.parametrize("world", [1, 2])
def test_refusals_reach_all_ranks_and_the_next_call_is_right(world):
    for rank, (answers, of_compiler) in enumerate(ranks.run(world, every_refusal)):
        for name, (errors, is_right) in answers.items():
            assert is_right, (rank, name, errors)
            for error in errors:
                assert (REFUSALS | LATE)[name][1] in error, (rank, name, error)
        if of_compiler:
            refusal, *are_right = of_compiler
            assert "k is a tensor without numbers" in refusal and all(are_right)
