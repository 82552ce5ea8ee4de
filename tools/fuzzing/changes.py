"""Changes of bytes and of JSON that readers of files get wrong; each is drawn from a seeded generator."""

import copy
import json
import re

NUMBERS = [0, 1, -1, 3, 127, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1]
NUMBERS += [2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)]
VALUES = [None, True, False, "", "a", [], {}, [[]], [1], {"type": "Sequence"}, 1.5, -0.0, 1e300, 1e-300]
#: Parts of texts, of regular expressions too.
PIECES = [r"(", r")", r"[", r"]", r"|", r"*+", r"'", "\\", r"\p{L}", r"\p{", r"(a*)*", r"(?=", r"(?i:", r"[^"]
PIECES += [r"{99999}", r"{1,2147483647}"]
PIECES += ["", "\0", "\n", " ", "\x1b[2J", "\u2028", "\ufffd", "\U0010ffff", "e\u0301", "\u1100\u1161"]
#: JSON that no value of Python gives.
RAW = [b"1e999", b"-1e999", b"1e-400", b"1" * 400, b"-0", b"01", b"NaN", b"/**/1", b"", b'{"a":1,"a":2}']
RAW += [rb'"\ud800"', rb'"\udc00\ud800"', rb'"\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"']
RAW += [b"[" * 90 + b"]" * 90, b"[" * 60000 + b"]" * 60000, b'{"a":' * 60000 + b"1" + b"}" * 60000]
RAW += [b'"' + b"a" * 100000 + b'"']
_MARK = "\ue000raw"


def changed_bytes(data, random, same_size=False):
    """One to four places are changed."""
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 4])):
        # Heads are short, and most of a file is behind them.
        at = random.randrange(min(len(data), random.choice([32, 512, len(data)])) + 1)
        length = random.choice([1, 2, 8, random.randrange(1, 200)])
        kind = random.randrange(4 if same_size else 9)
        if kind == 0:
            data[at : at + 1] = bytes([random.randrange(256)])[: len(data) - at]
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif kind in (2, 3):
            size = random.choice([1, 2, 4, 8])
            number = random.choice(NUMBERS) % 2 ** (8 * size)
            data[at : at + size] = number.to_bytes(size, "little")[: len(data) - at]
        elif kind == 4:
            del data[at : at + length]
        elif kind == 5:
            data[at:at] = data[at : at + length] * random.choice([1, 1, 2, 50])
        elif kind == 6:
            del data[at:]
        elif kind == 7:
            data[at:at] = random.choice([b"\0", b"\xff\xfe", b"\xc0\x80", b"\n", b'"', b"{", b"]"])
        else:
            numbers = list(re.finditer(rb"\d+", data[at : at + 4096]))
            if numbers:
                begin, end = random.choice(numbers).span()
                data[at + begin : at + end] = str(random.choice(NUMBERS)).encode()
    return bytes(data)


def _keys(value):
    if isinstance(value, dict):
        return list(value)
    return range(len(value)) if isinstance(value, list) else []


def _like(value, random):
    """Another value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return random.choice([*NUMBERS, value + 1, -value])
    if isinstance(value, str):
        at, end = sorted(random.randrange(len(value) + 1) for _ in range(2))
        middle = random.choice([*PIECES, value[at:end] * 2, value[at:end] * random.choice([1, 1000])])
        return value[:at] + middle + value[random.choice([at, end]) :]
    if isinstance(value, list):
        at = random.randrange(len(value) + 1)
        return random.choice([value[:at], value[at:], value[::-1], value + value[at : at + 3], value * 2])
    pairs = list(value.items())
    random.shuffle(pairs)
    return (
        dict([*pairs[1:], (random.choice(["", "type", "id", "x\0"]), pairs[0][1])]) if pairs else {"type": 0}
    )


def changed_tree(tree, random, raw=True):
    """A copy of a value of JSON with some nodes changed; `raw`: also to what json_bytes alone can say."""
    root = [copy.deepcopy(tree)]
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        parent, key = root, 0
        while (keys := _keys(parent[key])) and random.random() < 0.9:
            parent, key = parent[key], random.choice(keys)
        value = parent[key]
        kind = random.randrange(10)
        if kind == 0 and parent is not root:
            del parent[key]
        elif kind == 1:
            parent[key] = copy.deepcopy(random.choice(VALUES))
        elif kind == 2 and raw:
            parent[key] = _MARK + str(random.randrange(len(RAW)))
        elif kind == 3:
            parent[key] = copy.deepcopy(parent[random.choice(_keys(parent))])
        elif kind == 4:
            parent[key] = random.choice([[value], {"type": value}, random.choice(NUMBERS)])
        else:
            parent[key] = _like(value, random)
    return root[0]


def json_bytes(tree):
    """The text of a tree, compact."""
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    # A mark that was changed again may have another number.
    return re.sub(f'"{_MARK}(\\d+)"'.encode(), lambda match: RAW[int(match[1]) % len(RAW)], text)
