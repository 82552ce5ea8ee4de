"""Scripts run under torchrun, for tests."""

import os
import subprocess
import sys

import armillary

HERE = os.path.dirname(os.path.abspath(__file__))


def torchrun(ranks, *command, timeout_s=600, exit_code=0):
    """Standard output of a script of this folder, or of ``-m module``, under torchrun.

    Fails with the output of the ranks if torchrun ends with another exit code."""
    script = list(command) if command[0] == "-m" else [os.path.join(HERE, command[0]), *command[1:]]
    paths = [os.path.dirname(os.path.dirname(armillary.__file__)), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, *script], env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout
