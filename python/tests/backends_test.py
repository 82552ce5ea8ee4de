"""Process groups of other backends than Gloo: their ranks and their store are used, no messages of theirs."""

import datetime

import ranks
import torch
import torch.distributed as dist
from attention_test import errors_against_one_device

import armillary


def with_another_name(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def over_a_registered_backend(rank, world):
    dist.Backend.register_backend("renamed", with_another_name, devices=["cpu"])
    timeout = datetime.timedelta(seconds=20)
    group = dist.new_group(list(range(world)), backend="renamed", timeout=timeout)
    sp = armillary.SequenceParallel(group, strategy="ring")
    return max(errors_against_one_device(sp, armillary.masks.causal()))


def test_a_registered_backend_is_as_good_as_gloo():
    assert max(ranks.run(2, over_a_registered_backend)) < 1e-12


def over_ranks_that_are_not_there(rank, world):
    """The error on a group of torch that only pretends to have other ranks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    sp = armillary.SequenceParallel(timeout_s=1)
    try:
        sp.attention(*(torch.ones(1, 4, 2, 4) for _ in range(3)))
    except armillary.CommError as error:
        return str(error)
    return "no error"


def test_a_group_that_pretends_is_refused():
    (text,) = ranks.run(1, over_ranks_that_are_not_there)
    assert "rank 0 cannot use the store of the process group: " in text
    assert "is required" in text
