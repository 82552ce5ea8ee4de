"""Checks how comments are written: none, and no sentence of one, begins with "Of", "What", "Where" or "Who",
and a .cpp of more than 100 lines opens with 2 to 12 lines that say what it does and how.

    python3 tools/check_comments.py    list every broken rule, exit 1 if any
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOPS = ("armillary", "cli", "python", "tests", "examples", "tools", "cmake")
BAD = ("Of", "What", "Where", "Who")
LONG, OPENING = 100, range(2, 13)
MARK = {".h": "//", ".cpp": "//", ".cu": "//", ".py": "#", ".sh": "#", ".cmake": "#", ".txt": "#"}
STRING = re.compile(r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)'")


def comment_of(line, mark):
    """(whether the line is a comment alone, its text), or None if it has no comment."""
    code = STRING.sub(lambda match: "_" * len(match.group()), line)
    at = code.find(mark)
    if at < 0:
        return None
    text = line[at:].lstrip("/#").removeprefix("<")
    return code[:at].strip() == "", text.strip()


def comments(path):
    """(line number, text) of each comment: lines that follow one another are one."""
    mark = MARK[path.suffix]
    texts, open_since = [], None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        comment = comment_of(line, mark)
        if comment is None:
            open_since = None
            continue
        alone, text = comment
        if alone and open_since is not None:
            texts[-1][1] += " " + text
        else:
            texts.append([number, text])
        open_since = number
    if path.suffix == ".py":
        body = path.read_text(encoding="utf-8")
        for block in re.finditer(r'"""(.*?)"""', body, re.DOTALL):
            texts.append([body.count("\n", 0, block.start()) + 1, " ".join(block.group(1).split())])
    return texts


def bad_sentences(path):
    for number, text in comments(path):
        for sentence in re.split(r"(?<=[.?!])\s+", text):
            if sentence.split(" ", 1)[0].rstrip(",?") in BAD:
                yield number, sentence


def opening_lines(path):
    """The number of comment lines before anything else."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))


def lacks_opening(path):
    if path.suffix != ".cpp":
        return False
    lines = path.read_text(encoding="utf-8").count("\n")
    return lines > LONG and opening_lines(path) not in OPENING


def files(paths):
    for path in paths:
        below = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (p for p in below if p.suffix in MARK and "__pycache__" not in p.parts)


def check():
    tops = [ROOT / top for top in TOPS]
    broken = 0
    for path in files(tops):
        for number, sentence in bad_sentences(path):
            print(
                f"{path.relative_to(ROOT)}:{number}: begins with its first word: {sentence[:70]}",
                file=sys.stderr,
            )
            broken += 1
        if lacks_opening(path):
            print(
                f"{path.relative_to(ROOT)}: opens with {opening_lines(path)} lines of comment; above "
                f"{LONG} lines, {OPENING[0]} to {OPENING[-1]} that say what it does and how are required",
                file=sys.stderr,
            )
            broken += 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(check())
