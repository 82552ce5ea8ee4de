"""Texts that several modules write."""


def count_of(count: int, one: str, many: str = "") -> str:
    """`1 rank`, `2 ranks`; `many` where the plural is not made with an s: `2 queries`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


_MOST = 255  # characters of a user's text


def excerpt(text: str) -> str:
    """Text of a user as one printable line; a longer one loses its middle."""
    if len(text) <= _MOST:
        return _printable(text)
    first, last = text[: _MOST // 2 + 1], text[-(_MOST // 2) :]
    return f"{_printable(first)}.. ({len(text) - _MOST} characters left out) ..{_printable(last)}"


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
