"""Checks how comments are written: none, and no sentence of one, begins with "Of", "What", "Where" or "Who";
a .cpp of more than 100 lines opens with 2 to 12 lines that say what it does and how; and the share of lines
that are comments is 8 to 15 % of all sources and 30 to 40 % of all headers.

    check_comments.py                  the whole tree; exit code 1 if a rule is broken
    check_comments.py --self-test      the checks themselves
    check_comments.py --density PATH.. the shares below each path, file by file, and no verdict

A line is a comment if nothing else stands on it. Headers that are compiled once per instruction set
(`*-inl.h`) are sources. Tests have no share to keep."""

import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOPS = ("armillary", "cli", "python", "tests", "bench", "examples", "tools", "cmake")
BAD = ("Of", "What", "Where", "Who")
LONG, OPENING = 100, range(2, 13)
SOURCES, HEADERS = (0.08, 0.15), (0.30, 0.40)
MARK = {".h": "//", ".cpp": "//", ".cu": "//", ".py": "#", ".sh": "#", ".cmake": "#", ".txt": "#"}
STRING = re.compile(r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)'")


def comment_of(line, mark):
    """(whether the line is a comment alone, its text), or None if it has no comment."""
    code = STRING.sub(lambda found: "_" * len(found.group()), line)
    at = code.find(mark)
    if at < 0:
        return None
    text = line[at:].lstrip("/#").removeprefix("<")
    return code[:at].strip() == "", text.strip()


def comments(path):
    """(line number, text) of each comment: lines that follow one another are one."""
    mark = MARK[path.suffix]
    found, open_since = [], None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        comment = comment_of(line, mark)
        if comment is None:
            open_since = None
            continue
        alone, text = comment
        if alone and open_since is not None:
            found[-1][1] += " " + text
        else:
            found.append([number, text])
        open_since = number
    if path.suffix == ".py":
        body = path.read_text(encoding="utf-8")
        for block in re.finditer(r'"""(.*?)"""', body, re.DOTALL):
            found.append([body.count("\n", 0, block.start()) + 1, " ".join(block.group(1).split())])
    return found


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
    return path.suffix == ".cpp" and counts(path)[0] > LONG and opening_lines(path) not in OPENING


def kind(path):
    """`source`, `header`, or None for what has no share of its own."""
    relative = path.relative_to(ROOT)
    if relative.parts[0] in ("tests", "tools", "cmake") or "testing" in relative.parts:
        return None
    if path.name.endswith("_test.cpp") or path.suffix not in (".h", ".cpp"):
        return None
    return "header" if path.suffix == ".h" and not path.name.endswith("-inl.h") else "source"


def counts(path):
    """(lines, lines that are comments)"""
    lines = path.read_text(encoding="utf-8").splitlines()
    return len(lines), sum(line.lstrip().startswith("//") for line in lines)


def files(paths):
    for path in paths:
        below = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (p for p in below if p.suffix in MARK and "__pycache__" not in p.parts)


def shares(paths):
    """Lines and comment lines by kind."""
    totals = {"source": [0, 0], "header": [0, 0]}
    for path in files(paths):
        if kind(path):
            for i, count in enumerate(counts(path)):
                totals[kind(path)][i] += count
    return totals


def print_density(paths):
    for path in files(paths):
        if kind(path):
            lines, of_comments = counts(path)
            print(f"{of_comments / max(1, lines):6.1%} {lines:5} {kind(path)} {path.relative_to(ROOT)}")
    for name, (lines, of_comments) in shares(paths).items():
        if lines:
            print(f"{of_comments / lines:6.1%} {lines:5} all {name}s")


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
    for name, bounds in (("source", SOURCES), ("header", HEADERS)):
        lines, of_comments = shares(tops)[name]
        if not bounds[0] <= of_comments / lines <= bounds[1]:
            print(
                f"{name}s: {of_comments / lines:.1%} of their lines are comments; "
                f"{bounds[0]:.0%} to {bounds[1]:.0%} is required",
                file=sys.stderr,
            )
            broken += 1
    return 1 if broken else 0


def self_test():
    """The check sees what it has to see."""
    bad = '// A list. Of those the first\n// counts. What is it?\nint x;  // Where?\nchar s[] = "// Of";\n'
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.h"
        path.write_text(bad, encoding="utf-8")
        found = [sentence for _, sentence in bad_sentences(path)]
        opened = pathlib.Path(folder) / "x.cpp"
        lacking = []
        for opening in (1, 2):
            opened.write_text("// A line.\n" * opening + "int x;\n" * LONG, encoding="utf-8")
            lacking.append(lacks_opening(opened))
    assert found == ["Of those the first counts.", "What is it?", "Where?"], found
    assert lacking == [True, False], lacking
    return 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if arguments[:1] == ["--density"]:
        print_density([pathlib.Path(path).resolve() for path in arguments[1:]])
        return 0
    return check()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
