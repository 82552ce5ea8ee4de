"""Groups of any backend, sub-groups in any order, and a group that moves no data."""

import pytest
import ranks
import reference
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import armillary

TOKENS = 24


def whole_qkv():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(1, TOKENS, 2, 4, generator=generator, dtype=torch.float64) for _ in range(3)]


def error_of(sp):
    at = sp.positions(TOKENS)
    out = sp.attention(*(x[:, at] for x in whole_qkv()), seq_len=TOKENS)
    wanted = reference.attention(*whole_qkv(), torch.ones(TOKENS, TOKENS).tril().bool())
    return reference.relative_error(out, wanted[:, at])


def many_groups(rank, world):
    found = {}
    # Devices of PyTorch's own groups: CPU and GPU, and GPU alone, whose group carries no CPU tensors.
    for backend in ("cpu:gloo,cuda:gloo", "cuda:gloo"):
        found[backend] = error_of(armillary.SequenceParallel(dist.new_group(backend=backend)))
    # Every rank is in three groups of different sizes, and calls them in another order than it made them.
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    triples = [dist.new_group([0, 1, 2]), dist.new_group([3])]
    pair = armillary.SequenceParallel(pairs[rank % 2])
    triple = armillary.SequenceParallel(triples[rank == 3], strategy="ring")
    everyone = armillary.SequenceParallel()
    for name, sp in (("triple", triple), ("pair", pair), ("all", everyone), ("pair again", pair)):
        found[name] = error_of(sp)
    # A sub-group ends alone; one that takes its place has connections of its own.
    dist.destroy_process_group(pairs[rank % 2])
    with pytest.raises(armillary.InvalidArgument, match="no process group is named"):
        pair.attention(*whole_qkv())
    again = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    found["a new pair"] = error_of(armillary.SequenceParallel(again))
    found["all again"] = error_of(everyone)
    return found


def test_any_backend_and_sub_groups():
    for rank, found in enumerate(ranks.run(4, many_groups)):
        assert len(found) == 8
        for name, error in found.items():
            assert error < 1e-12, f"rank {rank}, {name}: {error}"


def of_a_fake_group(rank, world):
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
    sp = armillary.SequenceParallel(strategy="ring", timeout_s=5)
    shape = sp.attention(*(torch.empty(1, 3, 2, 4, device="meta") for _ in range(3))).shape
    with pytest.raises(armillary.InvalidArgument) as refused:
        sp.attention(*(torch.ones(1, 3, 2, 4) for _ in range(3)))
    return tuple(shape), str(refused.value)


def test_a_group_that_moves_no_data_has_shapes_and_is_refused():
    ((shape, text),) = ranks.run(1, of_a_fake_group)
    assert shape == (1, 3, 2, 4)
    assert "has backend fake" in text and "gloo" in text


def an_object_that_outlives_its_group(rank, world, meeting):
    """The object of a group that was destroyed ends on one rank, while a group of its name is in use."""
    old = dist.group.WORLD
    name = armillary.SequenceParallel().group_name
    error_of(armillary.SequenceParallel())
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    sp = armillary.SequenceParallel(timeout_s=10)
    errors = [error_of(sp)]
    if rank == 0:
        del old
    dist.barrier()
    errors.append(error_of(sp))
    assert sp.group_name == name
    return max(errors)


def test_the_end_of_an_old_group_does_not_touch_a_new_one(tmp_path):
    assert max(ranks.run(2, an_object_that_outlives_its_group, str(tmp_path / "meeting"))) < 1e-12
