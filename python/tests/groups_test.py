"""Groups of any backend, sub-groups in any order, and a group that moves no data."""

import copy
import multiprocessing
import os
import time

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
    expected = reference.attention(*whole_qkv(), torch.ones(TOKENS, TOKENS).tril().bool())
    return reference.relative_error(out, expected[:, at])


def many_groups(rank, world):
    answers = {}
    # Devices of PyTorch's own groups: CPU and GPU, and GPU alone, whose group carries no CPU tensors.
    for backend in ("cpu:gloo,cuda:gloo", "cuda:gloo"):
        answers[backend] = error_of(armillary.SequenceParallel(dist.new_group(backend=backend)))
    # Every rank is in three groups of different sizes, and calls them in another order than it made them.
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    triples = [dist.new_group([0, 1, 2]), dist.new_group([3])]
    pair = armillary.SequenceParallel(pairs[rank % 2])
    triple = armillary.SequenceParallel(triples[rank == 3], strategy="ring")
    everyone = armillary.SequenceParallel()
    for name, sp in (("triple", triple), ("pair", pair), ("all", everyone), ("pair again", pair)):
        answers[name] = error_of(sp)
    # A sub-group ends alone; one that takes its place has connections of its own.
    dist.destroy_process_group(pairs[rank % 2])
    with pytest.raises(armillary.InvalidArgument, match="no process group is named"):
        error_of(pair)
    again = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    answers["a new pair"] = error_of(armillary.SequenceParallel(again))
    answers["all again"] = error_of(everyone)
    return answers


def test_any_backend_and_sub_groups():
    for rank, answers in enumerate(ranks.run(4, many_groups)):
        assert len(answers) == 8
        for name, error in answers.items():
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


def in_a_child(action):
    """The text of what an action raises in a forked child, and how long that took."""
    mine, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        begin = time.monotonic()
        try:
            text = repr(action())
        except BaseException as error:  # noqa: BLE001, the parent fails with it
            text = f"{type(error).__name__}: {error}"
        theirs.send((text, time.monotonic() - begin))
        os._exit(0)
    assert mine.poll(90), "the child hangs"
    os.waitpid(child, 0)
    return mine.recv()


def of_children(rank, world):
    """Children that use a group of their parent, in which it has attended or not."""
    used, unused = armillary.SequenceParallel(timeout_s=60), dist.new_group()
    error_of(used)
    # Rank 1 attends later: nothing of the child's may reach the others.
    calls = {
        "the parent's object": lambda: error_of(used),
        "its own object": lambda: error_of(armillary.SequenceParallel(timeout_s=60)),
        "a group that the parent did not use": lambda: error_of(armillary.SequenceParallel(unused)),
        "loss": lambda: used.loss(torch.zeros(1, 4, 5), torch.zeros(1, 4, dtype=torch.int64)),
        "one by one": lambda: used.begin(heads=2).feed_k(whole_qkv()[0][:, : TOKENS // world]),
        "a shard": lambda: used.shard(x=whole_qkv()[0])["x"].shape[1],
        "a group of one": lambda: error_of_one(used),
    }
    answers = {name: in_a_child(call) for name, call in calls.items()}
    return answers, error_of(used), error_of(armillary.SequenceParallel(unused))


def error_of_one(sp):
    """A child without a group of its own may still attend alone."""
    alone = copy.copy(sp)
    alone.group_name, alone.world, alone.rank, alone._shards = "", 1, 0, {}
    return error_of(alone) < 1e-12


def test_a_forked_child_is_refused_the_groups_of_its_parent():
    for answers, *errors in ranks.run(2, of_children):
        assert max(errors) < 1e-12
        assert answers.pop("a shard")[0] == str(TOKENS // 2) and answers.pop("a group of one")[0] == "True"
        for name, (text, took_s) in answers.items():
            assert text.startswith("InvalidArgument: armillary: process "), (name, text)
            assert "was forked after the process group" in text, (name, text)
            assert "spawned, or forked before init_process_group" in text and took_s < 5, (name, took_s)


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
