"""The peer's end of the lines of JSON that armillary/lab/bench/contender.h describes."""

import json
import os
import sys


def claim_stdout():
    """Standard output for answers alone: prints of libraries go to standard error from here on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


class UnableError(Exception):
    """A peer cannot run a side. The text is the reason, ready for the table."""


def reason(error):
    """One line for the table."""
    if isinstance(error, UnableError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {error.name}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def serve(answers, facts, run):
    """Prints the facts, then answers each line of standard input with the value of `run(line)` or its error.

    `run` may return (value, facts): facts that are added to those of the contender."""

    def answer(content):
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    answer(facts)
    for line in sys.stdin:
        side = line.strip()
        try:
            value = run(side)
        except Exception as error:  # noqa: BLE001, a peer's failure is a row of the table
            answer({"side": side, "error": reason(error)})
            continue
        value, more = value if isinstance(value, tuple) else (value, {})
        answer({"side": side, "value": value, "facts": more})
