"""Random texts over all categories of Unicode, runs of blanks, digits, scripts, emoji, broken UTF-8."""

import collections
import functools
import random
import unicodedata

WORDS = """the| the|it's|'LL|  |\n|\r\n|\t| |    |1234567|３|日本語|한국어|😀|👨‍👩‍👧|é|e\u0301|<s>|<unk>|\
</s>|<think>|<0x41>|▁|▁▁|don't|HELLO|'ſ|Ünïcode|  x|_|...|/*|//|\u00a0|\u3000|\u0085|\ufffd|a|I|▁the|\
<!endoftext!>|<!begin!>"""
PIECES = [word.replace("!", "|") for word in WORDS.split("|")]


@functools.cache
def code_points():
    """{category: its code points}, without surrogates, which no text has."""
    by_category = collections.defaultdict(list)
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            by_category[unicodedata.category(chr(code))].append(code)
    return list(by_category.values())


def piece(draw):
    kind = draw.random()
    if kind < 0.35:
        return draw.choice(PIECES)
    if kind < 0.75:
        return chr(draw.choice(draw.choice(code_points())))
    if kind < 0.85:
        return " " * draw.randrange(1, 9)
    if kind < 0.9:
        return str(draw.randrange(10 ** draw.randrange(1, 12)))
    return chr(draw.randrange(32, 127)) * draw.randrange(1, 60)


def text(draw):
    """Bytes, some of them no UTF-8."""
    data = bytearray("".join(piece(draw) for _ in range(draw.randrange(40))).encode())
    if draw.random() < 0.15:
        for _ in range(draw.randrange(1, 6)):
            data.insert(draw.randrange(len(data) + 1), draw.randrange(256))
        if draw.random() < 0.3:
            del data[draw.randrange(len(data))]
    return bytes(data)


def texts(count, seed=5):
    draw = random.Random(seed)
    return [text(draw) for _ in range(count)]
