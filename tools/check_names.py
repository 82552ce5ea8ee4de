"""Checks names: a type is defined once in the tree, and no identifier is a bare participle.

python3 tools/check_names.py    list every broken rule, exit 1 if any
"""

import collections
import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOPS = ("armillary", "cli", "python", "tests", "bench", "examples", "tools")
CPP = {".h", ".cpp", ".cu", ".cuh"}
NOISE = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
TYPE = re.compile(r"\b(?:struct|class|enum(?: class)?)\s+(\w+)\s*(?:final\s*)?(?::[^:;{][^;{]*)?\{")
PARTICIPLES = {"asked", "chosen", "done", "found", "given", "held"}
PARTICIPLES |= {"kept", "made", "named", "seen", "sent", "wanted"}
# Cases of tests are local; the other two are written for two instruction sets.
SHARED = {"Case", "FiniteWords", "TileRegisters"}
PUBLIC = {("python/armillary/masks.py", "seen")}  # a keyword of users


def code_of(path):
    """The text of a C++ source without strings and comments, its lines in place."""
    return NOISE.sub(lambda hit: "\n" * hit[0].count("\n"), path.read_text(encoding="utf-8"))


def cpp_names(path):
    for number, line in enumerate(code_of(path).splitlines(), 1):
        yield from ((number, name) for name in re.findall(r"\w+", line))


def python_names(path):
    """Names of this file; attributes may be those of a library."""
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME and before != ".":
            yield token.start[0], token.string
        before = token.string


def main():
    sources = [p for top in TOPS for p in sorted((ROOT / top).rglob("*")) if "gloo_headers" not in p.parts]
    types, broken = collections.defaultdict(list), []
    for path in (p for p in sources if p.suffix in CPP or p.suffix in {".py", ".pyi"}):
        name = path.relative_to(ROOT).as_posix()
        for number, word in cpp_names(path) if path.suffix in CPP else python_names(path):
            if word in PARTICIPLES and (name, word) not in PUBLIC:
                broken.append(f"{name}:{number}: '{word}' is a participle; a noun for what it is is required")
        for hit in TYPE.finditer(code_of(path)) if path.suffix in CPP else ():
            types[hit[1]].append(name)
    for word, places in sorted(types.items()):
        if len(places) > 1 and word not in SHARED:
            broken.append(
                f"{places[1]}: the type {word} is in {places[0]} too; a name of its own is required"
            )
    print(*broken, sep="\n", end="\n" if broken else "", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
