"""Process groups of other backends than Gloo: their ranks and their store are used, no messages of theirs."""

import datetime

import ranks
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
