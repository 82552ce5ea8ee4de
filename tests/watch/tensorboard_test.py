"""Event files of `armillary train` as PyPI's tensorboard reads them, and as the bytes of their format."""

import importlib.util
import json
import pathlib
import struct
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "bin" / "armillary"
needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="[SKIP] Python has no tensorboard"
)
pytestmark = pytest.mark.skipif(
    not PROGRAM.is_file(), reason="[SKIP] build/bin/armillary is not built: ./dev build"
)
KEYS = ("loss", "grad_norm", "lr", "tps", "step_s", "exposed_s", "memory_bytes")


def train(folder, *more, steps):
    settings = {
        "training.dataset_path": ROOT / "README.md",
        "training.validation_path": ROOT / "CONTRIBUTING.md",
        "training.validation_interval": 2,
        "training.validation_sequences": 2,
        "training.seq_len": 256,
        "training.steps": steps,
        "model.dim": 64,
        "model.n_layers": 2,
        "metrics.enable_tensorboard": "true",
        "checkpoint.enable": "true",
        "checkpoint.interval": 4,
        "job.dump_folder": folder,
    }
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words = [PROGRAM, "train", ROOT / "recipes" / "default.toml", *flags, *more]
    subprocess.run(words, check=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps that goes on to seven: two event files."""
    folder = tmp_path_factory.mktemp("events") / "run"
    train(folder, steps=4)
    train(folder, "--resume", steps=7)
    return folder


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@needs_tensorboard
def test_tensorboard_reads_the_numbers_of_the_lines(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    lines = lines_of(run)
    for key in (*KEYS, "validation_loss"):
        expected = [(line["step"], line[key]) for line in lines if key in line]
        read = [(event.step, event.value) for event in events.Scalars(key)]
        assert [step for step, _ in read] == [step for step, _ in expected], key
        for (step, value), (_, number) in zip(read, expected, strict=True):
            assert value == pytest.approx(number, rel=1e-6), (key, step)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_every_record_has_its_checksums(run):
    files = sorted((run / "tensorboard").iterdir())
    assert len(files) == 2
    for file in files:
        data = file.read_bytes()
        at = events = 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            (of_length,) = struct.unpack_from("<I", data, at + 8)
            event = data[at + 12 : at + 12 + length]
            (of_event,) = struct.unpack_from("<I", data, at + 12 + length)
            assert (of_length, of_event) == (masked(data[at : at + 8]), masked(event)), file.name
            at += 16 + length
            events += 1
        assert at == len(data)
        # A version, a start, and a line each.
        assert events == 2 + (4 if file == files[0] else 3)
