"""The peer's end of the protocol of bench/contest.py."""

import json
import os
import sys


def claim_stdout():
    """Standard output for answers alone: what libraries print goes to standard error from here on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


class UnableError(Exception):
    """A peer cannot do it; the text is the reason, ready for the table."""


def reason(error):
    """One line for the table."""
    if isinstance(error, UnableError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {error.name}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def serve(answers, facts, run):
    """Answers every line of standard input with what `run(line)` returns, or its error."""

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer(facts)
    for line in sys.stdin:
        side = line.strip()
        try:
            answer({"side": side, "value": run(side)})
        except Exception as error:  # noqa: BLE001, a peer's failure is a row of the table
            answer({"side": side, "error": reason(error)})
