"""The program, run on pictures, and a reader of its PNG files by the format's text, without libpng."""

import os
import pathlib
import struct
import subprocess
import zlib

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / os.environ.get("ARMILLARY_BUILD", "build") / "bin" / "armillary"
SECONDS = 1800

built = pytest.mark.skipif(
    not PROGRAM.is_file(), reason="[SKIP] build/bin/armillary is not built: ./dev build"
)


def run(*arguments):
    finished = subprocess.run(
        list(map(str, arguments)), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def flags(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def pixels(path):
    """[height, width, channels] from 0 to 255, of 8 bits, gray or red, green and blue."""
    data, at, body = path.read_bytes(), 8, b""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == b"IDAT":
            body += data[at + 8 : at + 8 + size]
        at += 12 + size
    width, height, depth, kind = struct.unpack_from(">IIBB", data, 16)
    assert depth == 8 and kind in (0, 2)
    channels = 3 if kind == 2 else 1
    rows = unfiltered(zlib.decompress(body), width * channels, channels)
    return rows.reshape(height, width, channels)


def unfiltered(data, width, channels):
    """Rows of values, each behind the number of its filter."""
    rows = []
    for begin in range(0, len(data), width + 1):
        kind, row = data[begin], list(data[begin + 1 : begin + 1 + width])
        above = rows[-1] if rows else [0] * width
        for i in range(width):
            left, corner = (row[i - channels], above[i - channels]) if i >= channels else (0, 0)
            guess = left + above[i] - corner
            nearest = min((left, above[i], corner), key=lambda value: abs(guess - value))
            row[i] = (row[i] + (0, left, above[i], (left + above[i]) // 2, nearest)[kind]) % 256
        rows.append(row)
    return np.array(rows, dtype=float)
