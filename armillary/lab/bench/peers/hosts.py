"""The needs of a peer on emulated hosts (tests/multihost/hosts.py), which it knows by the names of their
network namespaces."""

import ctypes
import json
import os
import subprocess

CLONE_NEWNET = 0x40000000
DEVICE = "net0"


def enter(host):
    """Puts this process, which has no other threads that use sockets, on a host."""
    with open(f"/var/run/netns/{host}", encoding="utf-8") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), host)


def sent_bytes(hosts):
    """Bytes that the hosts have sent so far, headers included; 0 without hosts."""
    total = 0
    for host in hosts:
        command = ["ip", "-n", host, "-s", "-j", "link", "show", DEVICE]
        (link,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        total += link["stats64"]["tx"]["bytes"]
    return total
