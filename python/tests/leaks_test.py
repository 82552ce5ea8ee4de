"""Many calls leave nothing behind; forks and threads are told apart."""

import concurrent.futures
import os
import random
import threading
import time
import weakref

import ranks
import torch
import torch.distributed as dist

import armillary
from armillary import masks

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


def usage_after_calls(random_numbers):
    for _ in range(CALLS):
        random_call(random_numbers)
    armillary.SequenceParallel().attention(*(torch.ones(1, 4, 4, 8) for _ in range(3)))
    return usage()


def random_calls(rank, world):
    """Usage after each 200 calls, until one of three times of 200 has left nothing on any rank."""
    random_numbers = random.Random(8)  # the same on all ranks
    usages = [usage_after_calls(random_numbers)]
    for _ in range(3):
        usages.append(usage_after_calls(random_numbers))
        has_grown = torch.tensor(int(grows(*usages[-2:])))
        dist.all_reduce(has_grown, dist.ReduceOp.MAX)
        if not has_grown:
            break
    return usages


def grows(before, after):
    return after[0] - before[0] >= 4 << 20 or after[1] > before[1] or after[2] > before[2]


def test_200_random_calls_leave_nothing_behind():
    """A leak is one of all calls; what an allocator keeps, it keeps once."""
    for usages in ranks.run(2, random_calls):
        assert not grows(*usages[-2:]), f"bytes, files and threads after each {CALLS} calls: {usages}"


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
    """The longest part of a call on another thread in which this one does not run. Parts are counted in the
    time that the call has a core: a machine that runs neither thread, or this one alone, adds nothing."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        clock = time.pthread_getcpuclockid(pool.submit(threading.get_ident).result())
        begin = last = time.clock_gettime(clock)
        future, longest = pool.submit(call), 0.0
        while not future.done():
            now = time.clock_gettime(clock)
            longest, last = max(longest, now - last), now
            time.sleep(1e-4)
        end = time.clock_gettime(clock)
    return max(longest, end - last) / (end - begin)


def test_other_threads_run_while_plans_are_made_and_proved():
    """A machine may run the call and not this thread, though not in each of ten tries."""
    fields = {"world": 64, "seq": 65536, "heads": 64, "mask": "causal", "layout": "zigzag"}
    problem = armillary.plans._native_problem(fields)
    make = lambda: armillary._native.make_plans(problem, "ring", ["forward", "backward"], "all")  # noqa: E731
    plan = make()[0]
    calls = {"make": make, "verify": lambda: plan.verify(1), "to_json": plan.to_json}
    for name, call in calls.items():
        parts = []
        while len(parts) < 10 and min(parts, default=1.0) >= 0.7:
            parts.append(longest_stop(call))
        assert min(parts) < 0.7, f"{name}: kept for {min(parts):.0%} of it"


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
    """Whether a refusal waits for nobody: one that others should hear takes 10 s."""
    begin = time.monotonic()
    try:
        sp.shard(input_ids=torch.ones(1, 4), labels=torch.ones(1, 3))
    except armillary.InvalidArgument:
        return time.monotonic() - begin < 8
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
