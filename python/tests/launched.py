"""Scripts run on ranks, for tests: under torchrun, or forked with what torchrun sets, so that nothing is
imported again."""

import contextlib
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import ranks
import torch

import armillary

KINDS = ("out", "err")
HERE = os.path.dirname(os.path.abspath(__file__))


def torchrun(world, *command, timeout_s=600, exit_code=0):
    """Standard output of a script of this folder, or of ``-m module``, under torchrun.

    Fails with the output of the ranks if torchrun ends with another exit code."""
    script = list(command) if command[0] == "-m" else [os.path.join(HERE, command[0]), *command[1:]]
    paths = [os.path.dirname(os.path.dirname(armillary.__file__)), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    result = subprocess.run(
        [*launcher, *script], env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert result.returncode == exit_code, result.stdout + result.stderr
    return result.stdout


def _be_rank(rank, world, port, folder, command):
    """The life of a forked rank."""
    code = 1
    try:
        for number, name in enumerate(KINDS, 1):
            file = os.open(folder / f"{rank}.{name}", os.O_CREAT | os.O_WRONLY)
            os.dup2(file, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ |= {name: str(place) for name, place in places.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        os.environ["TORCHELASTIC_RUN_ID"] = "none"
        torch.set_num_threads(1)
        is_module = command[0] == "-m"
        sys.argv = list(command[is_module:])
        if is_module:
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(os.path.join(HERE, command[0]), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001, the parent shows it
        traceback.print_exc()
    finally:
        armillary.leave_groups()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(children, timeout_s):
    """Exit codes by rank; all end when one fails, or at the deadline."""
    codes, end = {}, time.monotonic() + timeout_s
    while len(codes) < len(children):
        for rank, child in enumerate(children):
            if rank not in codes and (status := os.waitpid(child, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(status[1])
        if any(codes.values()) or time.monotonic() > end:
            for rank, child in enumerate(children):
                if rank not in codes:
                    os.kill(child, signal.SIGKILL)
                    codes[rank] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.01)
    return codes


def forked(world, *command, timeout_s=600):
    """As `torchrun`, the outputs of ranks one after the other; with a GPU, under torchrun itself."""
    if ranks.START != "fork":
        return torchrun(world, *command, timeout_s=timeout_s)
    with tempfile.TemporaryDirectory() as name, contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port, folder = free.getsockname()[1], pathlib.Path(name)
        free.close()
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                _be_rank(rank, world, port, folder, command)
            children.append(child)
        codes = _wait(children, timeout_s)
        texts = ["".join((folder / f"{rank}.{kind}").read_text() for rank in range(world)) for kind in KINDS]
    assert not any(codes.values()), f"{codes}\n{''.join(texts)}"
    return texts[0]
