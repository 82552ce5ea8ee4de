"""GGUF files by numpy alone: a reader with the formulas of ggml, and a writer of small files."""

import struct

import numpy as np

#: Values and bytes of a block, by the number of the type.
BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    8: (32, 34),
    12: (256, 144),
    14: (256, 210),
    30: (1, 2),
}
NAMES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _Front:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        length = self.number("Q")
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind = self.number("I")
            return [self.value(kind) for _ in range(self.number("Q"))]
        return self.number(_NUMBERS[kind])


def read(path):
    """Metadata, and tensors as fp32 by their names."""
    data = memoryview(np.memmap(path, dtype=np.uint8, mode="r"))
    front = _Front(data)
    assert bytes(data[:4]) == b"GGUF"
    front.at = 8
    tensors, keys = front.number("Q"), front.number("Q")
    metadata = {}
    for _ in range(keys):
        key = front.text()
        metadata[key] = front.value(front.number("I"))
    infos = []
    for _ in range(tensors):
        name = front.text()
        shape = [front.number("Q") for _ in range(front.number("I"))][::-1]
        infos.append((name, shape, front.number("I"), front.number("Q")))
    alignment = metadata.get("general.alignment", 32)
    begin = -(-front.at // alignment) * alignment
    values = {}
    for name, shape, kind, offset in infos:
        count, size = BLOCKS[kind]
        blocks = int(np.prod(shape)) // count
        raw = np.frombuffer(data, np.uint8, blocks * size, begin + offset).reshape(blocks, size)
        values[name] = dequantized(kind, raw).reshape(shape)
    return metadata, values


def _half(raw):
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def dequantized(kind, raw):
    """Values of blocks, a row each."""
    name = next(name for name, number in NAMES.items() if number == kind)
    return globals()[f"_{name.lower()}"](raw).astype(np.float32)


def _f32(raw):
    return np.ascontiguousarray(raw).view(np.float32)


def _f16(raw):
    return _half(raw)


def _bf16(raw):
    return (np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw):
    return _half(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8).astype(np.float32)


def _nibbles(raw):
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def _q4_0(raw):
    return _half(raw[:, :2]) * (_nibbles(raw[:, 2:]) - 8)


def _q4_1(raw):
    return _half(raw[:, :2]) * _nibbles(raw[:, 4:]) + _half(raw[:, 2:4])


def _q4_k(raw):
    d, dmin = _half(raw[:, :2]), _half(raw[:, 2:4])
    low, middle, high = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1).astype(np.float32)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1).astype(np.float32)
    quants = raw[:, 16:].reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    values = (d * scales)[:, :, None] * quants.reshape(-1, 8, 32) - (dmin * minima)[:, :, None]
    return values.reshape(len(raw), 256)


def _q6_k(raw):
    low, high = raw[:, :128].reshape(-1, 2, 1, 64), raw[:, 128:192].reshape(-1, 2, 1, 32)
    low = (low >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15).reshape(-1, 2, 4, 32)
    high = high >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    quants = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return ((_half(raw[:, 208:]) * scales)[:, :, None] * quants).reshape(len(raw), 256)


def random_blocks(kind, count, generator):
    """Blocks of any bits, but with scales that are small numbers."""
    values, size = BLOCKS[kind]
    raw = generator.integers(0, 256, (count, size), dtype=np.uint8)
    halves = {1: range(0, 2, 2), 2: [0], 3: [0, 2], 8: [0], 12: [0, 2], 14: [208]}.get(kind, [])
    # So that values are about 0.1 in all types.
    deviation = {8: 1e-3, 12: 1e-4, 14: 3e-5}.get(kind, 0.02)
    for at in halves:
        scale = generator.normal(0, deviation, (count, 1)).astype(np.float16)
        raw[:, at : at + 2] = scale.view(np.uint8).reshape(count, 2)
    if kind in (0, 30):
        plain = generator.normal(0, 0.1, (count, 1)).astype(np.float32)
        raw = plain.view(np.uint8).reshape(count, 4)[:, 4 - size :]
    return np.ascontiguousarray(raw)


def _text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def write(path, metadata, tensors):
    """`tensors`: (number of the type, shape, blocks) by name."""
    front = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        front += _text(key) + _value(value)
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        data += b"\0" * (-len(data) % 32)
        front += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data))
        data += raw.tobytes()
    path.write_bytes(front + b"\0" * (-len(front) % 32) + data)
