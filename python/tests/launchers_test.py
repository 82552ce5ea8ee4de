"""Ranks that torchrun or torch.multiprocessing starts."""

import os
import pathlib
import subprocess
import sys

import pytest
import reference
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import armillary

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize("world", [2, 3, 4] if os.environ.get("ARMILLARY_TEST_ALL") else [3])
def test_torchrun(world):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    result = subprocess.run(
        [*command, str(HERE / "programs" / "on_ranks.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert sorted(result.stdout.split("\n"))[1:] == [f"rank {r} of {world}: exact" for r in range(world)]


def of_a_pool(rank, world, meeting):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    sp = armillary.SequenceParallel(strategy="ring")
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(1, 12, 2, 4, generator=generator) for _ in range(3)]
    at = sp.positions(12)
    out = sp.attention(*(x[:, at] for x in whole))
    expected = reference.attention(*whole, torch.ones(12, 12).tril().bool())[:, at]
    assert reference.relative_error(out, expected) < 1e-5
    dist.destroy_process_group()


@pytest.mark.parametrize(("world", "method"), [(2, "spawn"), (3, "fork"), (4, "fork")])
def test_multiprocessing(world, method, tmp_path):
    mp.start_processes(of_a_pool, args=(world, str(tmp_path / "meeting")), nprocs=world, start_method=method)
