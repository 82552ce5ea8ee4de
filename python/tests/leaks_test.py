"""Many calls leave nothing behind; forks and threads are told apart."""

import concurrent.futures
import os
import random
import time
import weakref

import pytest
import ranks
import torch
import torch.distributed as dist

import armillary
from armillary import masks

pytestmark = pytest.mark.alone

CALLS = 200


def random_call(random_numbers):
    """One call of attention with options drawn at random, forward and mostly backward, sometimes refused."""
    draw = random_numbers.choice
    tokens = draw((4, 8, 13))
    mask = draw((masks.full(), masks.causal(), masks.window(3), masks.documents([tokens, tokens])))
    sp = armillary.SequenceParallel(
        strategy=draw(("ring", "ulysses", "allgather", "auto:traffic", "tokenring")),
        layout=draw(("contiguous", "zigzag", "striped")),
        mask=mask,
    )
    dtype = draw((torch.float32, torch.bfloat16))
    wrong = tokens + (random_numbers.random() < 0.05)
    shapes = [(1, tokens, 4, 8), (1, wrong, 2, 8), (1, wrong, 2, 8)]
    q, k, v = (torch.ones(shape, dtype=dtype).requires_grad_() for shape in shapes)
    features = draw(({}, {"softcap": 3.0}, {"dropout": 0.2, "dropout_seed": 1}, {"sinks": torch.zeros(4)}))
    try:
        out = sp.attention(q, k, v, seq_len=2 * tokens, **features)
        if random_numbers.random() < 0.7:
            out.sum().backward()
        if random_numbers.random() < 0.2:
            sp.unshard(out.detach())
    except armillary.Error:
        dist.barrier()


def usage():
    """Resident pages, open files and threads of this process."""
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def random_calls(rank, world):
    random_numbers = random.Random(8)  # the same on all ranks
    for _ in range(CALLS):
        random_call(random_numbers)
    armillary.SequenceParallel().attention(*(torch.ones(1, 4, 4, 8) for _ in range(3)))
    before = usage()
    for _ in range(CALLS):
        random_call(random_numbers)
    armillary.SequenceParallel().attention(*(torch.ones(1, 4, 4, 8) for _ in range(3)))
    return before, usage()


def test_200_random_calls_leave_nothing_behind():
    for before, after in ranks.run(2, random_calls):
        assert after[0] - before[0] < 4 << 20, f"{before[0]} bytes before, {after[0]} after"
        assert after[1] <= before[1] and after[2] <= before[2], (
            f"files and threads: {before[1:]} before, {after[1:]} after"
        )


def many_objects(rank, world):
    """Objects of one group are many; the group ends once."""
    armillary.SequenceParallel()
    before = len(weakref.finalize._registry)
    for _ in range(100):
        armillary.SequenceParallel()
    return len(weakref.finalize._registry) - before


def test_objects_leave_nothing_behind():
    assert ranks.run(2, many_objects) == [0, 0]


def longest_stop(call):
    """The longest time that a call on another thread keeps this one from running, as a part of the call."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        begin = last = time.monotonic()
        done, longest = pool.submit(call), 0.0
        while not done.done():
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            time.sleep(1e-4)
        longest, took = max(longest, time.monotonic() - last), time.monotonic() - begin
    return longest / took


def test_other_threads_run_while_plans_are_made_and_proved():
    """On a busy machine a thread may be kept by others, so the best of three tries counts."""
    fields = {"world": 64, "seq": 65536, "heads": 64, "mask": "causal", "layout": "zigzag"}
    problem = armillary.plans._native_problem(fields)
    make = lambda: armillary._native.make_plans(problem, "ring", ["forward", "backward"], "all")  # noqa: E731
    plan = make()[0]
    calls = {"make": make, "verify": lambda: plan.verify(1), "to_json": plan.to_json}
    for name, call in calls.items():
        part = min(longest_stop(call) for _ in range(3))
        assert part < 0.7, f"{name}: kept for {part:.0%} of it"


def attend(sp, value):
    return sp.attention(*(torch.full((1, 4, 2, 4), float(value)) for _ in range(3)))


def a_thread_a_group(rank, world):
    """Calls of two groups from two threads, and of one group from four."""
    both = [armillary.SequenceParallel(dist.new_group([0, 1])) for _ in range(2)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        of_group = list(pool.map(lambda i: [attend(both[i], i) for _ in range(20)], range(2)))
    apart = all(bool((out == i).all()) for i, outs in enumerate(of_group) for out in outs)
    alone = armillary.SequenceParallel(dist.new_group([rank], use_local_synchronization=True))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda i: attend(alone, i), range(40)))
    return apart, all(bool((out == i).all()) for i, out in enumerate(outs))


def test_threads():
    for apart, together in ranks.run(2, a_thread_a_group):
        assert apart and together


def is_refused_at_once(sp):
    """Whether a refusal waits for nobody."""
    begin = time.monotonic()
    try:
        sp.shard(input_ids=torch.ones(1, 4), labels=torch.ones(1, 3))
    except armillary.InvalidArgument:
        return time.monotonic() - begin < 3
    return False


def a_forked_child(rank, world):
    """A child of a rank, such as a worker of a DataLoader, has no group: it attends and is refused alone, and
    its end does not touch the group."""
    sp = armillary.SequenceParallel()
    attend(sp, 1)
    child = os.fork()
    if child == 0:
        alone = armillary.SequenceParallel(mask="full")
        alone.group_name = ""
        alone.world = 1
        is_right = bool((attend(alone, 5) == 5).all())
        os._exit(0 if is_right and (rank == 1 or is_refused_at_once(sp)) else 1)
    _, status = os.waitpid(child, 0)
    return status, bool((attend(sp, 2) == 2).all())


def test_fork():
    assert ranks.run(2, a_forked_child) == [(0, True), (0, True)]


def test_importing_starts_nothing_and_patches_nothing():
    """In a process of its own: no thread more than those of torch, and torch's functions are its own."""
    import subprocess
    import sys

    program = """
import os, torch, torch.nn.functional as f, torch.distributed, torch.distributed.tensor
import torch.nn.attention.flex_attention
names = {m: dict(vars(m)) for m in (torch, f, torch.Tensor, torch.distributed, torch.nn.Module)}
threads = len(os.listdir('/proc/self/task'))
import armillary
assert len(os.listdir('/proc/self/task')) == threads
for module, before in names.items():
    for name, value in before.items():
        assert vars(module)[name] is value, (module, name)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
