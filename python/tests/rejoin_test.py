"""Calls that ranks leave out, refuse or come to late, at random places: the next call that all ranks make is
right, whatever came before it.

Groups of 2, 3 and 4 ranks run beside each other, each with a deadline of its own to wait for."""

import random
import re
import time

import pytest
import ranks
import reference
import torch
import torch.distributed as dist

import armillary

pytestmark = pytest.mark.alone  # Deadlines of two seconds, which a busy machine does not meet.

TOKENS = 24
TIMEOUT_S = 2.0  # of the calls that a fault strikes; the next common ones have a minute
SLACK_S = 10  # for machines that do something else beside
GROUPS = ([0, 1], [2, 3, 4], [5, 6, 7, 8])


class BadRecordError(Exception):
    """An error of the user's own code."""


def whole(step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(1, TOKENS, 2, 4, generator=generator, dtype=torch.float64) for _ in range(4)]


def common_step(sp, step):
    """Forward, backward and a collective; the largest relative error against one device."""
    at = sp.positions(TOKENS)
    *qkv, dout = whole(step)
    mine = [x[:, at].requires_grad_(True) for x in qkv]
    out = sp.attention(*mine, seq_len=TOKENS)
    (out * dout[:, at]).sum().backward()
    alone = [x.requires_grad_(True) for x in qkv]
    expected = reference.attention(*alone, torch.ones(TOKENS, TOKENS).tril().bool())
    (expected * dout).sum().backward()
    pairs = [(out, expected[:, at]), (sp.unshard(out.detach(), seq_len=TOKENS), expected)]
    pairs += [(a.grad, b.grad[:, at]) for a, b in zip(mine, alone, strict=True)]
    return max(reference.relative_error(result.detach(), right.detach()) for result, right in pairs)


def call(sp, step):
    at = sp.positions(TOKENS)
    return sp.attention(*(x[:, at].requires_grad_(True) for x in whole(step)[:3]), seq_len=TOKENS)


# Faults: what a culprit does in a step, and what the others do meanwhile.


def leaves_it_out(sp, step, is_culprit):
    if not is_culprit:
        call(sp, step)
    raise BadRecordError


def comes_late(sp, step, is_culprit):
    if is_culprit:
        time.sleep(1.4 * TIMEOUT_S)
    call(sp, step)


def is_refused(sp, step, is_culprit):
    if is_culprit:
        sp.attention(*torch.ones(3, 1, 5, 2, 4, dtype=torch.int64), seq_len=TOKENS)
    call(sp, step)


def is_refused_by_the_ranks(sp, step, is_culprit):
    if is_culprit:
        sp.attention(*torch.ones(3, 1, TOKENS, 2, 4, dtype=torch.float64), seq_len=TOKENS)
    call(sp, step)


def fails_before_backward(sp, step, is_culprit):
    out = call(sp, step)
    if is_culprit:
        raise BadRecordError
    out.sum().backward()


def leaves_out_a_collective(sp, step, is_culprit):
    out = call(sp, step)
    if is_culprit:
        raise BadRecordError
    sp.unshard(out.detach(), seq_len=TOKENS)


def leaves_the_groups(sp, step, is_culprit):
    call(sp, step)
    if is_culprit:
        armillary.leave_groups()


FAULTS = [
    leaves_it_out,
    comes_late,
    is_refused,
    is_refused_by_the_ranks,
    fails_before_backward,
    leaves_out_a_collective,
    leaves_the_groups,
]


def refused_and_left_out(sp, step, is_culprit):
    """The first rank refuses, the culprits are not there, others wait for both."""
    if is_culprit:
        raise BadRecordError
    is_refused(sp, step, sp.rank == 0)


def plan_of(world):
    """Faults with their culprits, the same on all ranks of a group."""
    dice = random.Random(world)
    plan = [(leaves_it_out, {0}), (leaves_it_out, {world - 1}), (refused_and_left_out, {world - 1})]
    for fault in dice.sample(FAULTS, len(FAULTS)):
        plan.append((fault, set(dice.sample(range(world), dice.randint(1, world - 1)))))
    return plan


def spoiled_steps(rank, world):
    groups = [dist.new_group(members) for members in GROUPS]
    (mine,) = (group for group, members in zip(groups, GROUPS, strict=True) if rank in members)
    sp = armillary.SequenceParallel(mine, strategy="ring", timeout_s=TIMEOUT_S)
    patient = armillary.SequenceParallel(mine, strategy="ring")
    log = []
    for step, (fault, culprits) in enumerate(plan_of(sp.world)):
        begin, text = time.monotonic(), "nothing"
        try:
            fault(sp, step, sp.rank in culprits)
        except (armillary.Error, BadRecordError) as error:
            text = f"{type(error).__name__}: {error}"
        took_s = time.monotonic() - begin
        dist.barrier(mine)
        begin = time.monotonic()
        try:
            record = common_step(patient, step)
        except armillary.Error as error:
            record = f"{type(error).__name__}: {error}"
        log.append((fault.__name__, sorted(culprits), text, took_s, record, time.monotonic() - begin))
        dist.barrier(mine)
    store = dist.distributed_c10d._get_default_store()
    keys = [key for key in store.list_keys() if "join_process_group" in key] if rank == 0 else []
    return log, keys, common_step(armillary.SequenceParallel(timeout_s=300), 0)


@pytest.fixture(scope="module")
def record():
    return ranks.run(sum(map(len, GROUPS)), spoiled_steps)


@pytest.fixture(params=GROUPS, ids=lambda members: f"{len(members)} ranks")
def logs(request, record):
    return [record[rank][0] for rank in request.param]


def test_the_next_common_step_is_right(logs):
    wrong = [
        f"rank {rank} after {name} of {culprits}, where it got {text!r} after {took_s:.1f} s: {error}"
        for rank, log in enumerate(logs)
        for name, culprits, text, took_s, error, _ in log
        if not isinstance(error, float) or error > 1e-12
    ]
    assert not wrong, "\n".join(wrong)


def test_other_groups_do_not_notice(record):
    assert max(error for _, _, error in record) < 1e-12


def test_ranks_that_wait_name_one_that_did_not_come(logs):
    waits = {f.__name__ for f in (leaves_it_out, comes_late, fails_before_backward, leaves_out_a_collective)}
    told = 0
    for rank, log in enumerate(logs):
        for name, culprits, text, took_s, _, _ in log:
            if name not in waits or rank in culprits:
                continue
            if name == "leaves_it_out" and "did not come" in text:
                match = re.search(r"ranks? ([\d, ]+) of \d+ did not come", text)
                assert [int(one) for one in match[1].split(",")] == culprits, text
            elif "CommError" in text:
                names = re.findall(r"; rank (\d+) \(host", text)
                assert names and int(names[-1]) in culprits, f"rank {rank}, {name} of {culprits}: {text}"
            assert took_s < 3 * TIMEOUT_S + SLACK_S, text
            told += "CommError" in text
    assert told >= 4


def test_meetings_that_are_over_leave_no_keys(record):
    met = {re.search(r"(.*)join_process_group/(\d+)/", key) for key in record[0][1] if "/record" in key}
    numbers = {group: sorted({int(m[2]) for m in met if m[1] == group}) for group in {m[1] for m in met}}
    assert len(numbers) == len(GROUPS)
    for newest in numbers.values():
        assert len(newest) == 2 and newest[1] > 8, numbers


def text_of(action, *args):
    try:
        action(*args)
    except armillary.Error as error:
        return f"{type(error).__name__}: {error}"


def of_two_ranks(rank, world):
    """Texts of calls that differ, and at last of one that rank 0 makes after rank 1 has ended."""
    sp = armillary.SequenceParallel(strategy="ring", timeout_s=60)
    texts = []

    def meet(of_rank_0, of_rank_1):
        dist.barrier()
        texts.append(text_of((of_rank_0, of_rank_1)[rank]))
        dist.barrier()

    loss = call(sp, 0).sum()
    meet(loss.backward, lambda: is_refused(sp, 0, True))
    loss = call(sp, 0).sum()
    armillary.leave_groups()
    meet(loss.backward, lambda: call(sp, 0))
    meet(lambda: None, lambda: None)
    texts.append(text_of(call, sp, 0))

    def comes_after_the_other():
        time.sleep(0.3)
        call(sp, 0)

    meet(lambda: sp.attention(*torch.ones(3, 1, TOKENS, 2, 4), deal="none"), comes_after_the_other)
    meet(lambda: call(sp, 0), comes_after_the_other)
    if rank == 1:
        return texts
    time.sleep(1)
    begin = time.monotonic()
    texts.append(text_of(call, sp, 0))
    assert time.monotonic() - begin < 30, "it waits for its deadline"
    return texts


@pytest.fixture(scope="module")
def texts():
    return ranks.run(2, of_two_ranks)


def test_peers_of_a_rank_that_refuses_hear_its_reason_alone(texts):
    reason = "attention: q is Long; fp64, fp32, bf16 or fp16 is required"
    assert texts[0][0] == f"CommError: rank 1 failed: {reason}"
    assert texts[1][0] == f"InvalidArgument: {reason}"


def test_backward_does_not_meet_the_forward_pass_of_another_rank(texts):
    questions = ["rank 0 was asked for call=backward, rank 1 for call=attention"]
    questions.append("rank 1 was asked for call=attention, rank 0 for call=backward")
    for of_rank in texts:
        assert of_rank[1].removeprefix("InvalidArgument: attention: ").partition(";")[0] in questions


def test_calls_that_are_equal_work_between_them(texts):
    assert [of_rank[2:4] for of_rank in texts] == [[None, None]] * 2


def test_a_refusal_that_a_rank_comes_late_to_is_over_when_both_have_heard_it(texts):
    assert "deal is a str" in texts[0][4] and "deal is a str" in texts[1][4]
    assert [of_rank[5] for of_rank in texts] == [None, None]


def test_a_rank_whose_process_has_ended_is_not_waited_for(texts):
    end = r"rank 1 of 2 did not come: process \d+ of host \S+, which was rank 1, has ended"
    assert re.search(end, texts[0][6])


TELLING_S = 10  # a rank that refuses waits so long for the others, if its timeout is longer


def makes_the_refused_call_late(sp, step, waits):
    """The other rank has gone to a barrier, as ranks do that agree on the step in which they go on."""
    if sp.rank == 1:
        time.sleep(TELLING_S + 0.5)
        late = armillary.SequenceParallel(sp._group, strategy="ring", timeout_s=2)
        waits["text"] = text_of(call, late, step)
    dist.barrier(sp._group)


def left_the_call_out_and_is_first(sp, step, waits):
    time.sleep(TELLING_S + 0.5 if sp.rank == 1 else 1.5)


def left_the_call_out_and_is_last(sp, step, waits):
    if sp.rank == 1:
        time.sleep(TELLING_S + 1.5)


LATE = [makes_the_refused_call_late, left_the_call_out_and_is_first, left_the_call_out_and_is_last]


def after_a_refusal_that_was_not_heard(rank, world):
    groups = [dist.new_group([2 * at, 2 * at + 1]) for at in range(len(LATE))]
    mine = groups[rank // 2]
    sp = armillary.SequenceParallel(mine, strategy="ring", timeout_s=3 * TELLING_S)
    sp._group = mine
    common_step(sp, 0)
    dist.barrier(mine)
    record, begin = {"case": LATE[rank // 2].__name__}, time.monotonic()
    if sp.rank == 0:
        record["refused"] = text_of(is_refused, sp, 1, True)
        record["refused_s"] = time.monotonic() - begin
    LATE[rank // 2](sp, 1, record)
    begin = time.monotonic()
    try:
        record["next step"] = common_step(sp, 2)
    except armillary.Error as error:
        record["next step"] = f"{type(error).__name__}: {error}"
    return record | {"took_s": time.monotonic() - begin}


def test_a_refusal_that_a_rank_does_not_hear_in_ten_seconds_is_over():
    for rank, record in enumerate(ranks.run(2 * len(LATE), after_a_refusal_that_was_not_heard)):
        assert record["next step"] < 1e-12 if isinstance(record["next step"], float) else False, record
        assert record["took_s"] < SLACK_S, record
        if rank % 2 == 0:
            assert record["refused"].startswith("InvalidArgument: attention: q is Long"), record
            assert TELLING_S - 1 < record["refused_s"] < TELLING_S + SLACK_S, record
        if "text" in record:
            both = r"rank 0 of 2 did not come within .* s; in the call before, rank 0 failed: attention: q is"
            assert re.search(both, record["text"]), record
