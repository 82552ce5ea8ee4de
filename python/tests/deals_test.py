"""A shard knows what it is a shard of: through workers, under layout balanced, and in compiled graphs."""

import pytest
import ranks
import reference
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

import armillary
from armillary import masks

TOKENS = 24
LENGTHS = [3, 14, 7]
IDS = torch.arange(TOKENS).expand(2, -1)
DOCUMENTS = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS)).expand(2, -1)


def balanced(rank, world):
    """Errors of packed documents that are dealt by their own mask, against one device."""
    sp = armillary.SequenceParallel(layout="balanced", strategy="ring")
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, TOKENS, 2, 4, dtype=torch.float64).unbind(0)
    batch = sp.shard(q=q, k=k, v=v, ids=IDS, document_ids=DOCUMENTS)
    expected = reference.attention(q, k, v, reference.dense_mask(masks.documents(LENGTHS), TOKENS))
    deal, (q, k, v) = batch.deal, (batch[name] for name in "qkv")
    out = sp.attention(q, k, v, deal=deal)
    with sp.patch_sdpa(deal=deal):
        patched = functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
        )
    results = {
        "attention": reference.relative_error(sp.unshard(out, deal=deal), expected),
        "the same mask in other words": reference.relative_error(
            sp.attention(q, k, v, mask=masks.documents(LENGTHS), deal=deal), out
        ),
        "patch_sdpa": reference.relative_error(patched.transpose(1, 2), out),
        "unshard": float((sp.unshard(batch["ids"]) - IDS).abs().max()),
        "dealt by hand": float(
            (sp.unshard(IDS[:, sp.positions(TOKENS)], deal=sp.deal(TOKENS)) - IDS).abs().max()
        ),
    }
    places = sp.positions(TOKENS, batch.mask), sp.positions(TOKENS)
    results["the masks deal alike"] = float(torch.equal(*places))
    return results


def test_layout_balanced_deals_by_the_mask_of_the_deal():
    for rank, results in enumerate(ranks.run(2, balanced)):
        for case, error in results.items():
            assert error <= 1e-12, f"rank {rank}: {case}: {error}"


def digests(rank, world):
    """Digests of sequences that look alike."""
    sp = armillary.SequenceParallel()
    ids = torch.tensor([[5, 5, 5, 5, 7, 7, 7, 7]])
    others = {
        "the same": ids.clone(),
        "int32": ids.int(),
        "two tokens exchanged": ids[:, [0, 1, 2, 4, 3, 5, 6, 7]],
        "rows in the place of columns": ids.reshape(2, 4),
        "longer by a zero": torch.cat([ids, torch.zeros(1, 4, dtype=torch.int64)], 1),
        "another token": ids + torch.tensor([0, 0, 0, 0, 0, 0, 0, 1]),
        "floats": ids.float(),
    }
    first = int(sp.shard(input_ids=ids).deal.digest)
    return {name: int(sp.shard(input_ids=other).deal.digest) == first for name, other in others.items()}


def test_digests_tell_sequences_apart():
    for results in ranks.run(2, digests):
        assert [name for name, same in results.items() if same] == ["the same", "int32"], results


def test_a_batch_in_pinned_memory_is_one_of_shards(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: self.clone())  # no GPU is needed
    sp = armillary.SequenceParallel()
    batch = sp.shard(input_ids=IDS, document_ids=DOCUMENTS)
    pinned = pin_memory(batch)
    assert pinned.deal == batch.deal and pinned["input_ids"].data_ptr() != batch["input_ids"].data_ptr()
    for name in ("input_ids", "document_ids", "positions"):
        with pytest.raises(armillary.InvalidArgument, match="is sharded already, part 0 of 1 of 24 tokens"):
            sp.shard(**{name: pinned[name]})
    pinned["weights"] = torch.ones(1, TOKENS)  # a tensor of the user's own
    sp.shard(weights=pinned["weights"])


def test_shards_of_a_worker_are_shards():
    sp = armillary.SequenceParallel()
    loader = DataLoader(
        [0], num_workers=1, collate_fn=lambda _: sp.shard(input_ids=IDS, document_ids=DOCUMENTS)
    )
    (batch,) = loader
    assert batch.deal == sp.deal(TOKENS, masks.causal() & masks.documents(LENGTHS, within="full"))
    assert int(batch.deal.digest) == int(sp.shard(input_ids=IDS, document_ids=DOCUMENTS).deal.digest)
    try:
        sp.shard(input_ids=batch["input_ids"])
    except armillary.InvalidArgument as error:
        assert "input_ids is sharded already, part 0 of 1 of 24 tokens" in str(error)
    else:
        raise AssertionError("sharded twice")
