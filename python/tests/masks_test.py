"""Masks of others become bands that show exactly the same pairs, or are refused."""

import pytest
import reference
import torch
from torch.nn.attention.flex_attention import create_block_mask

import armillary
from armillary import masks

TOKENS = 200
NAMED = {
    "full": masks.full(),
    "causal": masks.causal(),
    "window": masks.causal() & masks.window(17),
    "window to both sides": masks.window(9, 4),
    "prefix": masks.prefix(33),
    "documents": masks.documents([3, 1, 77, 100, 19]),
    "full documents": masks.documents([50, 150], within="full"),
    "block causal": masks.block_causal(30),
    "a window in documents": masks.documents([90, 110]) & masks.window(20),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_dense_mask_is_the_mask_it_was_made_of(name):
    dense = reference.dense_mask(NAMED[name], TOKENS)
    mask = masks.from_dense(dense)
    assert mask.length == TOKENS
    assert torch.equal(reference.dense_mask(mask, TOKENS), dense)
    # As few bands as the mask had: a plan costs no more.
    assert len(mask.at(TOKENS).bands()) <= len(NAMED[name].at(TOKENS).bands()) + 1


def test_random_unions_of_rectangles():
    generator = torch.Generator().manual_seed(11)
    for _ in range(50):
        dense = torch.zeros(40, 40, dtype=torch.bool)
        for _ in range(4):
            (a, b), (c, d) = torch.randint(0, 41, (2, 2), generator=generator).sort().values.tolist()
            dense[a:b, c:d] ^= True
        assert torch.equal(reference.dense_mask(masks.from_dense(dense), 40), dense)


def test_a_hole_is_kept():
    dense = torch.ones(64, 64).tril().bool()
    dense[40, 13] = False
    mask = masks.from_dense(dense.expand(2, 3, 64, 64))
    assert torch.equal(reference.dense_mask(mask, 64), dense)
    assert not mask.at(64).visible(40, 13)


def test_no_union_of_few_bands_is_refused_with_its_first_position():
    at = torch.arange(64)
    board = (at.unsqueeze(0) + at.unsqueeze(1)) % 2 == 0
    with pytest.raises(armillary.InvalidArgument, match="query 0, key 32 is not in the 16 bands before it"):
        masks.from_dense(board, most_bands=16)
    two = torch.ones(2, 64, 64, dtype=torch.bool)
    two[1, 5, 7] = False
    with pytest.raises(
        armillary.InvalidArgument, match="query 5, key 7 differs between batch entries or heads"
    ):
        masks.from_dense(two)
    for wrong in (board.float(), board[:3], torch.ones(4, dtype=torch.bool)):
        with pytest.raises(armillary.InvalidArgument, match=r"torch.bool \[S, S\]"):
            masks.from_dense(wrong)


IDS = torch.repeat_interleave(torch.arange(4), torch.tensor([20, 100, 1, 79]))
MODS = {
    "causal": (lambda b, h, q, k: q >= k, masks.causal()),
    "window": (lambda b, h, q, k: (q >= k) & (q - k <= 17), masks.causal() & masks.window(17)),
    "prefix": (lambda b, h, q, k: (k < 33) | (q >= k), masks.prefix(33)),
    "documents": (
        lambda b, h, q, k: (IDS[q] == IDS[k]) & (q >= k),
        masks.documents([20, 100, 1, 79]),
    ),
}


@pytest.mark.parametrize("name", MODS)
def test_a_block_mask(name):
    mod, same = MODS[name]
    block_mask = create_block_mask(mod, None, None, TOKENS, TOKENS, device="cpu", BLOCK_SIZE=64)
    mask = masks.from_block_mask(block_mask)
    assert torch.equal(reference.dense_mask(mask, TOKENS), reference.dense_mask(same, TOKENS))
    assert masks.as_mask(block_mask) == mask


def test_block_masks_that_are_refused():
    def by_head(b, h, q, k):
        return (q >= k) & ((h == 0) | (k != 7))

    of_heads = create_block_mask(by_head, None, 2, TOKENS, TOKENS, device="cpu")
    with pytest.raises(
        armillary.InvalidArgument, match="query 7, key 7 differs between batch entries or heads"
    ):
        masks.from_block_mask(of_heads)
    oblong = create_block_mask(lambda b, h, q, k: q >= k, None, None, TOKENS, 100, device="cpu")
    with pytest.raises(armillary.InvalidArgument, match="200 queries and 100 keys"):
        masks.from_block_mask(oblong)


def test_values():
    assert masks.causal() & masks.full() == masks.causal()
    assert str(masks.causal() & masks.window(3)) == "causal & window:left=3,right=0"
    with pytest.raises(armillary.InvalidArgument, match="documents of 3 and of 4 tokens"):
        masks.documents([3]) & masks.documents([4])
    with pytest.raises(armillary.InvalidArgument, match="causl"):
        masks.parse("causl")
    assert masks.document_lengths(torch.tensor([[7, 7, 2, 2, 2]])) == [2, 3]
    with pytest.raises(armillary.InvalidArgument, match="not in one piece"):
        masks.document_lengths(torch.tensor([1, 2, 1]))


def test_masks_with_nothing_in_common_show_nothing():
    above = masks.parse("bands:0-4/0-4/1..3")
    for mask, tokens in ((masks.causal() & above, 4), (masks.causal() & masks.window(3), 0)):
        sp = armillary.SequenceParallel(mask=mask)
        out = sp.attention(*(torch.ones(1, tokens, 2, 4) for _ in range(3)))
        assert out.shape == (1, tokens, 2, 4) and not out.any()


def test_a_dense_mask_that_shows_nothing():
    nothing = masks.from_dense(torch.zeros(4, 4, dtype=torch.bool))
    assert nothing.at(4).text() == nothing.text_at(4)
    out = armillary.SequenceParallel(mask=nothing).attention(*(torch.ones(1, 4, 2, 4) for _ in range(3)))
    assert not out.any()
