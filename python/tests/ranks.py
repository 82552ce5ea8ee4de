"""Ranks as processes, for tests: forked, so that torch is imported once, unless there is a GPU: a process
that has used it cannot be forked."""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

TIMEOUT_S = 300
START = os.environ.get("ARMILLARY_TEST_START", "spawn" if torch.cuda.is_available() else "fork")
LAST_RESULTS = []  # of the last run, also where it failed: None for ranks without an answer


def _rank_main(function, place, meeting, answers, args):
    rank, world = place
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        # Not answers.send: tensors would be left in the memory of this rank, which ends before they are read.
        answers.send_bytes(pickle.dumps((None, function(rank, world, *args))))
    except BaseException:  # noqa: BLE001, the parent fails with it
        answers.send_bytes(pickle.dumps((traceback.format_exc(), None)))
    finally:
        import armillary

        armillary.leave_groups()
        answers.close()
        os._exit(0)


def run(world, function, *args):
    """The results of function(rank, world, *args) by rank. Fails with the first traceback of a rank."""
    context = multiprocessing.get_context(START)
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        ranks = []
        for rank in range(world):
            mine, theirs = context.Pipe(duplex=False)
            of_rank = (function, (rank, world), meeting, theirs, args)
            process = context.Process(target=_rank_main, args=of_rank, daemon=True)
            process.start()
            theirs.close()
            ranks.append((process, mine))
        results = []
        for rank, (process, answers) in enumerate(ranks):
            if not answers.poll(TIMEOUT_S):
                results.append((f"rank {rank} gave no answer within {TIMEOUT_S} s", None))
                process.kill()
                continue
            try:
                results.append(pickle.loads(answers.recv_bytes()))
            except EOFError:
                results.append((f"rank {rank} ended without an answer", None))
        for process, _ in ranks:
            process.join(10)
            if process.is_alive():
                process.kill()
    LAST_RESULTS[:] = [result for _, result in results]
    failures = [failure for failure, _ in results if failure]
    assert not failures, "\n".join(failures)
    return [result for _, result in results]


def outcome(call, *args):
    """The type and text of the error of a call, and the seconds until it came."""
    begin, kind, text = time.monotonic(), "nothing", ""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001, any may come
        kind, text = type(error).__module__ + "." + type(error).__name__, str(error)
    return kind, text, time.monotonic() - begin
