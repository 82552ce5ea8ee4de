"""A mutant is one line of a file and what stands there instead; not every one is worth a trial."""

import dataclasses
import re

OPERATORS = set("+-*/%<>=!&|")
WORD = re.compile(r"[A-Za-z_]")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One line of a file, and what stands there instead."""

    file: str  # Relative to the checkout.
    line: int  # From 1.
    before: str
    after: str

    def source(self, text):
        """`text` of the file with the mutant in it; None if the line has changed since it was drawn."""
        lines = text.splitlines(keepends=True)
        if not 0 < self.line <= len(lines) or lines[self.line - 1].strip() != self.before.strip():
            same = [i for i, line in enumerate(lines, 1) if line.strip() == self.before.strip()]
            if len(same) != 1:
                return None
            return dataclasses.replace(self, line=same[0]).source(text)
        lines[self.line - 1] = self.after
        return "".join(lines)


def changed_part(before, after):
    """Begin and end of the part of `before` that differs, and its replacement in `after`."""
    begin = 0
    while begin < min(len(before), len(after)) and before[begin] == after[begin]:
        begin += 1
    end = 0
    while end < min(len(before), len(after)) - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    return begin, len(before) - end, after[begin : len(after) - end]


def is_statement(line):
    """True for a statement that the code could do without, not for a declaration that later lines need."""
    line = line.split("//")[0].strip()
    declares = re.match(r"(const|constexpr|static|auto|inline|return|[\w:<>,]+[&*]?) +[\w&*(\[]+.*;$", line)
    return line.endswith(";") and not (declares and not re.match(r"(if|for|while) ", line))


def is_plausible(before, after):
    """True for a mistake that somebody could make; the rules of universalmutator read no C++.

    Our sources are formatted: an operator between two values has spaces around it, `int64_t` is no number,
    the `<` of a template no comparison. The compiler finds the rest of what is no C++.
    """
    if re.search(r"\b(break|continue);\s*$", after) and not re.search(r"\b(break|continue);", before):
        return False
    if sum(map(before.count, "({")) != sum(map(after.count, "({")) and "(0==1)" not in after:
        added = re.sub(r"\(\d+[+-]1\)", "", after)
        if sum(map(before.count, "({")) != sum(map(added.count, "({")):
            return False
    comment = re.fullmatch(r"\s*/\*(.*)\*/\s*", after)
    if comment:
        return is_statement(comment.group(1))
    begin, end, new = changed_part(before, after)
    old = before[begin:end]
    if before[:begin].count('"') % 2 == 1 and '"' not in old + new:
        return False  # A word of a message.
    if set(old + new) <= OPERATORS and old + new not in ("!", "++--", "--++"):
        left = before[:begin].rstrip("".join(OPERATORS))
        right = before[end:].lstrip("".join(OPERATORS))
        return left.endswith(" ") and right.startswith((" ", "\n")) and left.strip() != ""
    if re.search(r"[a-z]", old + new) and (
        WORD.match(before[begin - 1 : begin]) or WORD.match(before[end : end + 1])
    ):
        return False  # A part of a name.
    if re.match(r"\d", old) or re.search(r"\d", new):
        return not WORD.match(before[begin - 1 : begin]) and not WORD.match(before[end : end + 1])
    return True
