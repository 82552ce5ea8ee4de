"""Bad input: a documented exception on every rank, before data moves, and a group that works afterwards."""

import os
import pickle
import time

import numpy
import pytest
import ranks
import torch
import torch.distributed as dist
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import armillary
from armillary import masks

TOKENS = 8


def qkv(tokens=TOKENS, dtype=torch.float32, heads=2, dim=4):
    return [torch.ones(1, tokens, heads, dim, dtype=dtype) for _ in range(3)]


def attend(*replaced, **options):
    """A call of attention with some of q, k, v replaced."""

    def call(sp, rank):
        inputs = qkv()
        for at, value in enumerate(replaced):
            if value is not None:
                inputs[at] = value() if callable(value) else value
        return sp.attention(*inputs, **options)

    return call


def on_rank(bad_rank, bad, good=None):
    """A call that is bad on one rank alone."""
    good = good or attend()
    return lambda sp, rank: (bad if rank == bad_rank else good)(sp, rank)


def twice_sharded(sp, rank):
    return sp.shard(input_ids=sp.shard(input_ids=IDS)["input_ids"])


def again(view):
    return lambda sp, rank: sp.shard(input_ids=view(sp.shard(input_ids=IDS)["input_ids"]))


def of_a_pickle(sp, rank):
    return sp.shard(input_ids=pickle.loads(pickle.dumps(sp.shard(input_ids=IDS)))["input_ids"])


def copied(sp):
    """A shard that is sharded again; nothing tells a copy from a sequence."""
    copy = sp.shard(input_ids=IDS[:, :36])["input_ids"].clone()
    return sp.shard(input_ids=copy, labels=copy)


def attending(remake, **options):
    """Plain attention to what is made of a shard, in a model that shards it again."""

    def call(sp, rank):
        first = sp.shard(x=HIDDEN)["x"]
        again = sp.shard(x=remake(first), ragged="uneven")["x"]
        return sp.attention(*(again + 0.0 for _ in range(3)), **options)

    return call


def of_a_bare_worker(x):
    """As a worker sends a tensor that is in no batch."""
    return pickle.loads(pickle.dumps(x.numpy()))


def skipping_attention(sp, rank):
    """Rank 1 has skipped a batch in a `try`; nobody gives the deal."""
    ids = IDS.reshape(10, 1, -1)[int(rank == 1)]
    sp.shard(input_ids=ids)
    return sp.attention(*qkv())


def fed(sp, rank):
    sp.shard(input_ids=IDS[:, rank : rank + 24])
    with sp.begin(heads=2) as begun:
        begun.feed_k(qkv()[0])
        begun.feed_v(qkv()[0])
        return begun.finish(qkv()[0])


def patched(sp, rank):
    sp.shard(input_ids=IDS[:, rank : rank + 24])
    with sp.patch_sdpa():
        q = qkv()[0].transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def of_two_batches(use):
    """Shards of two batches, of which rank 1 uses the first."""

    def call(sp, rank):
        batches = [sp.shard(x=HIDDEN)["x"], sp.shard(x=HIDDEN + 1.0)["x"]]
        return use(sp, batches[int(rank != 1)])

    return call


def begun(sp, x):
    with sp.begin(heads=x.shape[2]) as call:
        call.feed_k(x)


def sliced(sp, rank):
    """Some tokens of a shard, in a tensor of their own."""
    x = sp.shard(x=HIDDEN)["x"][:, :13] + 0.0
    return sp.attention(x, x, x)


def copied_twice(sp, rank):
    return sp.loss(torch.zeros(1, 4, 240), copied(sp)["labels"])


def skipping(sp, rank):
    """Rank 1 has gone on to the next batch."""
    ids = IDS.reshape(10, 1, -1)[int(rank == 1)]
    return sp.loss(torch.zeros(1, 8, 240), sp.shard(input_ids=ids, labels=ids)["labels"])


def other(sp, layout):
    return armillary.SequenceParallel(layout=layout, timeout_s=20)


def patched_balanced(sp, rank):
    with other(sp, "balanced").patch_sdpa():
        return torch.nn.functional.scaled_dot_product_attention(*qkv(), is_causal=True)


def labels(ids, shifted):
    return lambda sp, rank: sp.shard(input_ids=ids, labels=ids.roll(-1, 1) if shifted else ids[:, 1:])


def a_dtensor():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return DTensor.from_local(qkv()[0], mesh)


def autocast(sp, rank):
    with torch.autocast("cpu", torch.bfloat16):
        return sp.attention(*qkv())


def autocast_of_two(sp, rank):
    with torch.autocast("cpu", torch.bfloat16):
        return attend(qkv(dtype=torch.float64)[0])(sp, rank)


def twice_differentiated(sp, rank):
    q, k, v = (x.requires_grad_() for x in qkv())
    (gradient,) = torch.autograd.grad(sp.attention(q, k, v).sum(), q, create_graph=True)
    gradient.sum().backward()


def loss(rows, label):
    def call(sp, rank):
        return sp.loss(torch.zeros(1, rows, 5), torch.full((1, 4), label))

    return call


def settings(**by_rank):
    """Attention with a SequenceParallel whose settings depend on the rank."""

    def call(sp, rank):
        mine = {name: of(rank) for name, of in by_rank.items()}
        return armillary.SequenceParallel(timeout_s=20, **mine).attention(*qkv())

    return call


def sharded(**tensors):
    return lambda sp, rank: sp.shard(**tensors)


def unsharded(*tensors, **options):
    return lambda sp, rank: sp.unshard(*tensors, **options)


def losses(*arguments, **options):
    return lambda sp, rank: sp.loss(*arguments, **options)


def of_functorch(sp, rank):
    q, k, v = qkv()
    return torch.func.grad(lambda q: sp.attention(q, k, v).sum())(q)


def with_tangent(sp, rank):
    q, k, v = qkv()
    with forward_ad.dual_level():
        return sp.attention(forward_ad.make_dual(q, q), k, v)


WORLD = 3  # odd, so that zigzag gives ranks unequal shards of some lengths
IDS = torch.arange(30 * TOKENS).reshape(1, -1)
HIDDEN = torch.randn(1, 72, 2, 4, generator=torch.Generator().manual_seed(0))
OTHER_SEQUENCES = "ranks hold different sequences: the same whole sequence on all ranks"
# name: (the call, part of the text on a rank that was given a wrong value)
BAD = {
    "integers": (attend(lambda: qkv(dtype=torch.int64)[0]), "k is Float on cpu, q is Long"),
    "integers everywhere": (attend(*qkv(dtype=torch.int64)), "fp64, fp32, bf16 or fp16 is required"),
    "integers on a rank": (on_rank(1, attend(*qkv(dtype=torch.int64))), "q is Long"),
    "dtypes that differ": (on_rank(1, attend(*qkv(dtype=torch.float64))), "fp"),
    "numpy": (on_rank(0, attend(numpy.ones((1, 8, 2, 4)))), "q is a ndarray; a tensor is required"),
    "three dims": (attend(lambda: qkv()[0][0]), "q has 3 dims; [batch, tokens, heads, dim] is required"),
    "heads": (attend(None, *qkv(heads=3)[:2]), "heads"),
    "head dims": (attend(None, *qkv(dim=5)[:2]), "dims must agree"),
    "tokens of a rank": (
        on_rank(1, attend(*qkv(tokens=7), seq_len=24)),
        "k has 7 tokens on rank 1 of 3; layout zigzag gives it 8",
    ),
    "nested": (on_rank(0, attend(lambda: torch.nested.nested_tensor([torch.ones(2, 3)]))), "q is nested"),
    "sparse": (attend(lambda: qkv()[0].to_sparse()), "a strided tensor"),
    "a DTensor": (attend(a_dtensor), "q is a DTensor; the local tensor of this rank is required"),
    "a mask of the wrong kind": (on_rank(1, attend(mask=3)), "mask: a int is given; a text such as"),
    "an unknown mask": (attend(mask="causl"), "causl"),
    "a mask of two lines": (attend(mask="window:left=3,right=0\nproofs=/nowhere"), "mask window right"),
    "documents of another sum": (attend(mask=masks.documents([3, 4])), "tokens"),
    "a dense mask of another length": (attend(mask=torch.ones(15, 15).tril() > 0), "layout zigzag gives it"),
    "a format": (attend(format="BLDH"), "format is 'BLDH'; BLHD or BHLD is required"),
    "dropout without a seed": (on_rank(0, attend(dropout=0.5)), "a number for every layer is required"),
    "dropout of one": (attend(dropout=1.5, dropout_seed=1), "dropout"),
    "a scale that is no number": (attend(scale=float("nan")), "scale"),
    "a softcap below 0": (attend(softcap=-1.0), "softcap"),
    "a scale that is a text": (on_rank(1, attend(scale="0.1")), "scale is a str; a number is required"),
    "a softcap that is a list": (attend(softcap=[3.0]), "softcap is a list; a number is required"),
    "a length that is a float": (on_rank(0, attend(seq_len=16.0)), "seq_len is 16.0; a whole number"),
    "a negative length": (attend(seq_len=-16), "-16 tokens; a sequence of 0 to 2^56"),
    "a seed of more than 64 bits": (
        attend(dropout=0.5, dropout_seed=2**70),
        "dropout_seed is 1180591620717411303424; a whole number of 64 bits is required",
    ),
    "sinks in a list": (on_rank(1, attend(sinks=[0.0, 0.0])), "sinks is a list; a tensor"),
    "no head dims": (attend(*qkv(dim=0)), "head dim 0; 1 to 256 is required"),
    "no heads": (attend(*qkv(heads=0)), "heads 0 given"),
    "no batch entries": (attend(*[x[:0] for x in qkv()]), "batch 0 given; at least 1 is required"),
    "complex numbers": (attend(*qkv(dtype=torch.complex64)), "fp64, fp32, bf16 or fp16 is required"),
    "sinks": (attend(sinks=torch.zeros(3)), "one logit per query head, [2]"),
    "slopes": (attend(alibi_slopes=torch.zeros(2, dtype=torch.float64)), "slopes"),
    "cu_seqlens": (on_rank(0, attend(cu_seqlens=torch.tensor([1, 16]))), "0 and then ascending ends"),
    "cu_seqlens of floats": (attend(cu_seqlens=torch.tensor([0.0, 16.0])), "int32 or int64"),
    "scales that differ": (lambda sp, rank: attend(scale=1.0 + rank)(sp, rank), "scale"),
    "masks that differ": (
        lambda sp, rank: attend(mask=["causal", "full"][rank % 2])(sp, rank),
        "mask",
    ),
    "autocast on a rank": (on_rank(1, autocast), "dtype="),
    "autocast of fp64 and fp32": (autocast_of_two, "k is BFloat16 on cpu, q is Double"),
    "second derivatives": (twice_differentiated, "a graph of the gradient was asked for"),
    "sharded twice": (twice_sharded, "input_ids is sharded already"),
    "sharded twice on a rank": (on_rank(0, twice_sharded), "input_ids is sharded already"),
    "a view sharded twice": (again(lambda x: x[:]), "input_ids is sharded already, part"),
    "a slice sharded twice": (again(lambda x: x[:, 1:]), "input_ids is sharded already, part"),
    "a detached shard": (again(torch.Tensor.detach), "input_ids is sharded already, part"),
    "a batch from a pickle": (of_a_pickle, "input_ids is sharded already, part"),
    "a copy sharded twice": (copied_twice, "the same whole sequence on all ranks, sharded once"),
    "a copy sharded twice, attention": (
        lambda sp, rank: sp.attention(*qkv(4), deal=copied(sp).deal, seq_len=12),
        "ranks hold different sequences: the same whole sequence on all ranks",
    ),
    "a clone sharded twice, plain attention": (attending(torch.clone), OTHER_SEQUENCES),
    "a slice of a clone": (attending(lambda x: x.clone()[:, :18]), OTHER_SEQUENCES),
    "a clone that was detached": (attending(lambda x: (x * 1).detach()), OTHER_SEQUENCES),
    "a tensor of a bare worker": (
        attending(lambda x: torch.from_numpy(of_a_bare_worker(x))),
        OTHER_SEQUENCES,
    ),
    "a clone sharded twice, with its length": (attending(torch.clone, seq_len=24), OTHER_SEQUENCES),
    "a batch that was skipped, plain attention": (skipping_attention, OTHER_SEQUENCES),
    "a batch that was skipped, one by one": (fed, OTHER_SEQUENCES),
    "a batch that was skipped, patched": (patched, OTHER_SEQUENCES),
    "a batch that was skipped, unshard": (
        lambda sp, rank: [sp.shard(x=IDS[:, rank : rank + 24]), sp.unshard(torch.ones(1, 8))],
        "the same whole sequence on all ranks, sharded once",
    ),
    "shards of two batches": (of_two_batches(lambda sp, x: sp.attention(x, x, x)), OTHER_SEQUENCES),
    "shards of two batches, one by one": (of_two_batches(begun), OTHER_SEQUENCES),
    "shards of two batches, unshard": (
        of_two_batches(lambda sp, x: sp.unshard(x)),
        "the same whole sequence on all ranks, sharded once",
    ),
    "some tokens of a shard": (
        sliced,
        "13 tokens on each of 3 ranks would be a sequence of 39, and none of that length was dealt, nearest",
    ),
    "another sequence": (
        lambda sp, rank: sp.attention(*qkv(), deal=sp.shard(input_ids=IDS[:, rank : rank + 24]).deal),
        "ranks hold different sequences: the same whole sequence on all ranks",
    ),
    "a loss of another sequence": (skipping, "the same whole sequence on all ranks, sharded once"),
    "another sequence to unshard": (
        lambda sp, rank: sp.unshard(torch.ones(1, 8), deal=sp.shard(x=IDS[:, rank : rank + 24]).deal),
        "the same whole sequence on all ranks, sharded once",
    ),
    "uneven shards to unshard without a length": (
        lambda sp, rank: sp.unshard(sp.shard(x=IDS[:, :13], ragged="uneven")["x"] + 1),
        "on all ranks",
    ),
    "uneven shards to attend without a length": (
        lambda sp, rank: sp.attention(*[sp.shard(x=HIDDEN[:, :13], ragged="uneven")["x"] + 0] * 3),
        "5 tokens on each of 3 ranks would be a sequence of 15, and none of that length was dealt",
    ),
    "lengths to unshard that differ": (
        lambda sp, rank: sp.unshard(torch.ones(1, (14, 18)[rank % 2]), seq_len=(42, 54)[rank % 2]),
        "another sequence; the same seq_len or deal on all ranks is required",
    ),
    "a slice of a shard": (
        lambda sp, rank: sp.attention(*(sp.shard(x=torch.ones(1, 24, 2, 4))["x"][:, :4] for _ in range(3))),
        "a sequence of 12 tokens, tokens that were dealt from 24",
    ),
    "a deal that is none": (on_rank(1, attend(deal="zigzag")), "deal is a str; that of a batch, batch.deal"),
    "a deal of another length": (
        lambda sp, rank: sp.attention(*qkv(), deal=sp.deal(48), seq_len=24),
        "a sequence of 24 tokens, tokens that were dealt from 48",
    ),
    "the deal of another layout": (
        lambda sp, rank: sp.attention(*qkv(), deal=other(sp, "striped").deal(24)),
        "dealt as part 0 of 3 by layout striped, this SequenceParallel has part 0 of 3 and layout zigzag",
    ),
    "labels of another layout": (
        lambda sp, rank: sp.loss(torch.zeros(1, 8, 5), other(sp, "striped").shard(x=IDS[:, :24])["x"]),
        "by layout striped, this SequenceParallel has",
    ),
    "tokens of another layout": (
        lambda sp, rank: other(sp, "contiguous").attention(*qkv()),
        "has layout contiguous, and the last tokens of its group were dealt by another",
    ),
    "tokens of another layout, where both have dealt": (
        lambda sp, rank: (
            [other(sp, "contiguous").positions(24), sp.positions(24)]
            and other(sp, "contiguous").attention(*qkv())
        ),
        "has layout contiguous, and the last tokens of its group were dealt by another, of layout zigzag",
    ),
    "balanced without a deal": (
        lambda sp, rank: other(sp, "balanced").attention(*qkv()),
        "it is not known which mask dealt these; deal=batch.deal",
    ),
    "balanced with another mask": (
        lambda sp, rank: other(sp, "balanced").attention(
            *qkv(), mask=masks.documents([5, 12, 7]), deal=other(sp, "balanced").deal(24)
        ),
        "balanced dealt these tokens by the mask causal, and documents:5,12,7",
    ),
    "balanced with cu_seqlens": (
        lambda sp, rank: other(sp, "balanced").attention(
            *(other(sp, "balanced").shard(x=torch.ones(1, 24, 2, 4))["x"] for _ in range(3)),
            cu_seqlens=torch.tensor([0, 5, 17, 24]),
        ),
        "balanced dealt these tokens by the mask causal",
    ),
    "balanced, to unshard without a deal": (
        lambda sp, rank: other(sp, "balanced").unshard(torch.ones(1, 8)),
        "it is not known which mask dealt these; deal=batch.deal",
    ),
    "balanced, patched without a deal": (
        patched_balanced,
        "it is not known which mask dealt these; deal=batch.deal",
    ),
    "keys of another sequence without a mask": (
        attend(kv_seq_len=24),
        "kv_seq_len is 24, with layout zigzag, mask None, cu_seqlens False; a mask of the call, such as",
    ),
    "keys of another length": (
        attend(mask="full", kv_seq_len=48),
        "k has 8 tokens on rank 1 of 3; layout zigzag gives it 16",
    ),
    "keys that were dealt from another length": (
        lambda sp, rank: sp.attention(
            qkv()[0], *(sp.shard(x=torch.ones(1, 24, 2, 4))["x"] for _ in "kv"), mask="full", kv_seq_len=48
        ),
        "kv_seq_len is 48, and k was dealt from 24 tokens",
    ),
    "a setting that is none": (
        lambda sp, rank: sp.attention_and_max_logits(*qkv(), softcaps=1.0),
        "softcaps is no setting of attention",
    ),
    "another reduction to unshard": (unsharded(torch.ones(1, 8), reduce="max"), "reduce is 'max'; 'mean'"),
    "labels that are shifted": (labels(IDS, True), "labels are shifted already"),
    "labels of another length": (labels(IDS, False), "labels has 239 tokens, input_ids 240"),
    "ragged": (
        lambda sp, rank: sp.shard(input_ids=IDS[:, :13]),
        "13 tokens on 3 ranks with layout zigzag are shards of 4 to 5; equal shards, such as of 18 tokens",
    ),
    "no tensor": (lambda sp, rank: sp.shard(input_ids=[1, 2]), "input_ids is a list; a tensor is required"),
    "a loss without labels": (on_rank(1, loss(3, 0), loss(4, 0)), "logits of each label"),
    "a label out of range": (on_rank(1, loss(4, 7), loss(4, 0)), "labels in [0, 5) or -100 are required"),
    "tokens to unshard": (
        on_rank(1, lambda sp, rank: sp.unshard(torch.ones(1, 5), seq_len=24)),
        "5 tokens on rank 1; layout zigzag gives it 8 of 24",
    ),
    "a tensor of another device": (
        attend(qkv()[0].to("meta")),
        "k is on cpu, q on meta; one device for all is required",
    ),
    "sinks of another device": (attend(sinks=torch.zeros(2, device="meta")), "sinks is on meta, q on cpu"),
    "slopes of another device": (
        on_rank(2, attend(alibi_slopes=torch.zeros(2, device="meta"))),
        "alibi_slopes is on meta, q on cpu",
    ),
    "a mask without numbers": (
        on_rank(1, attend(mask=torch.ones(4, 4, device="meta").bool())),
        "torch.bool [4, 4] on meta; torch.bool [S, S]",
    ),
    "cu_seqlens without numbers": (
        on_rank(1, attend(cu_seqlens=torch.zeros(3, dtype=torch.int64, device="meta"))),
        "cu_seqlens: a meta tensor; one with numbers is required",
    ),
    "cu_seqlens in a list": (on_rank(1, attend(cu_seqlens=[0, 24])), "cu_seqlens: a list; a tensor"),
    "a mask that is no text": (on_rank(1, attend(mask="full\ud800")), "ASCII is required, such as 'causal'"),
    "documents of 2^64 tokens": (
        attend(mask="documents:9223372036854775807,9223372036854775807"),
        "a sequence of 0 to 2^56 tokens is required",
    ),
    "two scales": (on_rank(1, attend(scale=torch.ones(2))), "torch.float32 [2] on cpu; a number is required"),
    "functorch": (of_functorch, "plain tensors and backward, without torch.func, are required"),
    "forward derivatives": (on_rank(1, with_tangent), "a forward-mode derivative was asked for"),
    "strategies that differ": (settings(strategy=lambda r: ("ring", "ulysses")[r % 2]), "strategy"),
    "layouts that differ": (settings(layout=lambda r: ("zigzag", "contiguous")[r % 2]), "layout"),
    "wires that differ": (settings(wire=lambda r: ("input", "accumulator")[r % 2]), "wire"),
    "no such cut": (settings(strategy=lambda r: "usp:u=2"), "u=2"),
    "seeds that differ": (
        lambda sp, rank: attend(dropout=0.5, dropout_seed=rank)(sp, rank),
        "dropout",
    ),
    "batches that differ": (on_rank(1, attend(*[torch.ones(2, TOKENS, 2, 4) for _ in range(3)])), "batch"),
    "a dim that is a text": (on_rank(1, sharded(dim="1", input_ids=IDS)), "dim is '1'; 0 or more is"),
    "a negative dim": (sharded(dim=-3, input_ids=IDS), "dim is -3; 0 or more is required"),
    "sparse tokens": (sharded(input_ids=IDS.to_sparse()), "input_ids is nested, sparse"),
    "documents of floats": (
        sharded(input_ids=IDS, document_ids=IDS.float()),
        "document_ids: torch.float32 on cpu; whole numbers are required",
    ),
    "a loss of nothing": (on_rank(1, losses(None, None), loss(4, 0)), "loss: logits is a NoneType; a tensor"),
    "labels of another device": (
        on_rank(1, losses(torch.zeros(1, 4, 5), torch.zeros(1, 4, device="meta")), loss(4, 0)),
        "labels is on meta",
    ),
    "nothing to unshard": (
        on_rank(1, unsharded(None), unsharded(torch.ones(1, 8))),
        "is a NoneType; a tensor is required",
    ),
    "meta tensors to unshard": (
        on_rank(1, unsharded(torch.ones(1, 8, device="meta")), unsharded(torch.ones(1, 8))),
        "unshard: a tensor on meta",
    ),
    "a length to unshard": (unsharded(torch.ones(1, 8), seq_len=2**70), "a number of tokens is required"),
    "bytes of other kinds": (
        lambda sp, rank: sp.unshard(torch.ones(1, 8, dtype=(torch.int8, torch.uint8)[rank % 2])),
        "another dtype",
    ),
    "last sizes of many that differ": (
        lambda sp, rank: sp.unshard(torch.ones(1, 8, 1, 1, 1, 1, 1, 1 + rank)),
        "other sizes beside the tokens",
    ),
    "sizes that differ": (
        lambda sp, rank: sp.unshard(torch.ones(1, 8, 2 + rank)),
        "another dtype or other sizes beside the tokens",
    ),
}


SOON_S = 8  # less than the 10 s for which a rank that refuses waits for ranks that do not hear it


def outcomes(rank, world):
    """A call that ends late is made again: a busy machine, or a first import, delays one of three."""
    sp, answers = armillary.SequenceParallel(timeout_s=20), {}
    for name, (call, _) in BAD.items():
        for _ in range(3):
            sp.deal(24)  # the last tokens of the group are its own, and nobody knows what they are
            answers[name] = ranks.outcome(call, sp, rank)
            longest = torch.tensor(answers[name][2])
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            if longest < SOON_S:
                break
    whole = sp.attention(*qkv())
    answers["afterwards"] = torch.allclose(whole, torch.ones(()))
    return answers


@pytest.fixture(scope="module")
def answers():
    return ranks.run(WORLD, outcomes)


@pytest.mark.parametrize("name", BAD)
def test_refused_on_every_rank(answers, name):
    kinds = [of_rank[name][0] for of_rank in answers]
    texts = [of_rank[name][1] for of_rank in answers]
    allowed = {"armillary.errors.InvalidArgument", "armillary.errors.CommError"}
    assert set(kinds) <= allowed and "armillary.errors.InvalidArgument" in kinds, answers
    assert any(BAD[name][1] in text for text in texts), texts
    assert all("\n" not in text for text in texts), texts
    assert all("not done after" not in text for text in texts), texts
    assert max(of_rank[name][2] for of_rank in answers) < SOON_S


def test_the_group_works_afterwards(answers):
    assert all(of_rank["afterwards"] for of_rank in answers)


def gone(rank, world):
    """Rank 1 ends while the others attend."""
    sp = armillary.SequenceParallel(timeout_s=20)
    sp.attention(*qkv())
    if rank == 1:
        os._exit(1)
    texts = []
    for _ in range(2):
        begin = time.monotonic()
        try:
            armillary.SequenceParallel(timeout_s=3).attention(*qkv())
        except armillary.CommError as error:
            texts.append((str(error), time.monotonic() - begin))
    return texts


def test_a_dead_peer():
    with pytest.raises(AssertionError, match="rank 1 ended without an answer"):
        ranks.run(3, gone)
    for rank in (0, 2):
        ((first, seconds), (_, again)) = ranks.LAST_RESULTS[rank]
        assert "rank 1" in first and max(seconds, again) < 3 + 10, ranks.LAST_RESULTS


def destroyed(rank, world):
    sp = armillary.SequenceParallel()
    sp.attention(*qkv())
    dist.destroy_process_group()
    try:
        sp.attention(*qkv())
    except armillary.InvalidArgument as error:
        return str(error)


def test_a_group_that_was_destroyed():
    for text in ranks.run(2, destroyed):
        assert "no process group is named" in text


def meshes(rank, world):
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "cp"))
    texts = []
    for group in (mesh, 5, dist.GroupMember.NON_GROUP_MEMBER):
        try:
            armillary.SequenceParallel(group)
        except armillary.InvalidArgument as error:
            texts.append(str(error))
    dist.barrier()  # a rank that ends closes connections that the other still makes
    return texts


def test_groups():
    for of_mesh, of_number, of_none in ranks.run(2, meshes):
        assert "a mesh of 2 axes ('dp', 'cp'); one axis is required, such as mesh[\"cp\"]" in of_mesh
        assert "group is a int; a ProcessGroup" in of_number
        assert "this rank is not in the group" in of_none


def test_settings():
    for wrong, text in {
        "strategy": "rng",
        "layout": "zigzg",
        "wire": "outputs",
        "mask": "causl",
    }.items():
        with pytest.raises(armillary.InvalidArgument, match=text):
            armillary.SequenceParallel(**{wrong: text})
    for timeout_s in (0, float("nan"), "10"):
        with pytest.raises(armillary.InvalidArgument, match=f"timeout_s is {timeout_s!r}; seconds"):
            armillary.SequenceParallel(timeout_s=timeout_s)
    for name in ("strategy", "layout", "wire", "proofs"):
        with pytest.raises(armillary.InvalidArgument, match=f"{name} is a int; a text is required"):
            armillary.SequenceParallel(**{name: 3})


def test_tensors_of_a_gpu_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu = [torch.empty(1, TOKENS, 2, 4, device="cuda") for _ in range(3)]
        with pytest.raises(
            armillary.InvalidArgument, match="q is on cuda:0; a tensor on the CPU is required"
        ):
            armillary.SequenceParallel().attention(*on_gpu)
