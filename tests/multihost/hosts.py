"""Hosts that are network namespaces of this machine, joined by a switch and limited in rate.

    with Hosts(2, "1gbit") as hosts:          10.251.0.1 and 10.251.0.2
        hosts.mpirun(4, [program, ...])       2 processes on each

Needs root, `ip` and `tc`. Everything is removed at the end, also after a failure or a signal."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

SWITCH_S = 60  # for one command that makes or removes a part


def why_not():
    """The reason why this machine cannot have such hosts, or None."""
    for tool in ("ip", "tc", "mpirun"):
        if shutil.which(tool) is None:
            return f"no program {tool}"
    if os.geteuid() != 0:
        return "not root"
    name = f"ar{os.getpid()}x"
    result = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return f"no network namespaces: {result.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


class Hosts:
    """A switch and hosts around it. Each host sends at most `rate`, as tc writes it; None: no limit.
    After a pause it may send `burst` bytes at once."""

    def __init__(self, count, rate=None, burst=512 << 10):
        self.count = count
        self.rate = rate
        self.burst = burst
        self.mark = f"ar{os.getpid()}"
        self.switch = f"{self.mark}s"
        self.folder = None

    def name(self, host):
        return f"{self.mark}h{host}"

    @staticmethod
    def address(host):
        return f"10.251.0.{host + 1}"

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_):
        self._remove()

    def _ip(self, *words):
        subprocess.run(["ip", *words], check=True, timeout=SWITCH_S)

    def _make(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=self.mark))
        self._ip("netns", "add", self.switch)
        self._ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        self._ip("-n", self.switch, "link", "set", "switch", "up")
        for host in range(self.count):
            name = self.name(host)
            port = f"port{host}"
            self._ip("netns", "add", name)
            peer = ["peer", "name", port, "netns", self.switch]
            self._ip("link", "add", "net0", "netns", name, "type", "veth", *peer)
            self._ip("-n", self.switch, "link", "set", port, "master", "switch", "up")
            self._ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "net0")
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", name, "link", "set", "net0", "up")
            if self.rate:
                # Packets above the burst would be cut by the processor, which slows whatever computes.
                self._ip("-n", name, "link", "set", "net0", "gso_max_size", str(min(65536, self.burst // 2)))
                limit = ["rate", self.rate, "burst", f"{self.burst}b", "limit", "4mb"]
                tc = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "net0", "root", "tbf", *limit]
                subprocess.run(tc, check=True, timeout=SWITCH_S)
        # mpirun starts its daemons by this instead of ssh.
        agent = self.folder / "agent"
        # Daemons of one machine have one name, so each needs a folder of its own for its files.
        agent.write_text(
            "#!/bin/sh\n"
            "host=$(( ${1##*.} - 1 )); shift\n"
            f"export TMPDIR={self.folder}/$host; mkdir -p $TMPDIR\n"
            f'exec ip netns exec {self.mark}h$host sh -c "$*"\n',
            encoding="utf-8",
        )
        agent.chmod(0o700)

    def _remove(self):
        for name in [*map(self.name, range(self.count)), self.switch]:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for pid in pids.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def link(self, host, state):
        """Puts the link of a host "up" or "down"."""
        self._ip("-n", self.name(host), "link", "set", "net0", state)

    def mpirun_command(self, processes, command, settings=()):
        """mpirun on the first host, and daemons on the others; neighbouring ranks share a host. Settings
        are (name, value) of Open MPI."""
        a_host = processes // self.count
        hosts = ",".join(f"{self.address(host)}:{a_host}" for host in range(self.count))
        flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--quiet"]
        flags += ["-np", str(processes), "--host", hosts, "--map-by", "slot"]
        flags += ["--mca", "plm_rsh_agent", str(self.folder / "agent")]
        # tcp alone: hosts that share a machine must not find each other's memory.
        flags += ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "net0"]
        flags += ["--mca", "oob_tcp_if_include", "net0"]
        for setting in settings:
            flags += ["--mca", *setting]
        return ["ip", "netns", "exec", self.name(0), "mpirun", *flags, *map(str, command)]

    def mpirun(self, processes, command, timeout_s=300):
        """Runs to the end. Returns the finished process, with its output as text."""
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(
            self.mpirun_command(processes, command),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=env,
        )
