"""Draws one-line mutants of our sources with the rules of universalmutator."""

import contextlib
import io
import pathlib
import random

from universalmutator import mutator

from .mutant import Mutant, is_plausible

RULES = ["universal.rules", "c_like.rules", "cpp.rules"]

# Lines that no test can notice: checks of what cannot happen, and lines that are no code.
IGNORED = [
    r"ARMILLARY_CHECK",
    r"^\s*(//|#|using |namespace |static_assert|public:|private:|template <)",
    r"^[\s{}();]*$",
    r"\breserve\(",
]


def sources(root, folder):
    """The production sources of a folder: no tests."""
    paths = (root / folder).rglob("*")
    return sorted(p for p in paths if p.suffix in (".h", ".cpp") and not p.stem.endswith("_test"))


def mutants_of(root, path):
    """All mutants of one file, by line: [[Mutant]]."""
    text = path.read_text(encoding="utf-8").splitlines(keepends=True)
    with contextlib.redirect_stdout(io.StringIO()):
        drawn = mutator.mutants_regexp(text, ruleFiles=RULES, ignorePatterns=IGNORED)
    by_line = {}
    for number, after, *_ in drawn:
        before = text[number - 1]
        # One line stays one line, so that line numbers in messages stay what they are.
        after = after.rstrip("\n").replace("\n", " ") + "\n"
        above = (
            next((line for line in reversed(text[: number - 1]) if line.strip()), ";").split("//")[0].strip()
        )
        starts = above == "" or above[-1] in ";{}:"
        if is_plausible(before, after) and (starts or not after.lstrip().startswith("/*")):
            name = str(path.relative_to(root))
            by_line.setdefault(number, []).append(Mutant(name, number, before, after))
    return list(by_line.values())


def sequence(root, folder, seed, skipped=()):
    """Endless mutants of a folder: every line that has any is as likely as every other."""
    lines = []
    for path in sources(root, folder):
        if str(path.relative_to(root)) not in skipped:
            lines += mutants_of(root, path)
    rng = random.Random(f"{seed} {pathlib.PurePath(folder)}")
    rng.shuffle(lines)
    for line in lines:
        yield rng.choice(line)
