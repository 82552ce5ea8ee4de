"""Tests that docs/training.md names exist, and each claim of its lists has a row or a reason."""

import re

import pytest
from console_blocks import FILES, ROOT

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\w+\d.*?) \| (`.*) \|$", PAGE, re.MULTILINE)
REASONS = PAGE.split("Without a test:")[1]
CLAIMS = {"L": 8, "M": 8, "N": 5, "Z": 6, "T": 7, "C": 10}


def sources(ending):
    return [(ROOT / name).read_text(encoding="utf-8") for name in FILES if name.endswith(ending)]


@pytest.fixture(scope="module")
def tests():
    """Names of all tests as the page writes them."""
    cpp = "\n".join([*sources("_test.cpp"), *sources("tests/conformance/mesh.cpp")])
    suites = re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", cpp, re.MULTILINE)
    functions = re.findall(r"^def (test_\w+)\(", "\n".join(sources("_test.py")), re.MULTILINE)
    return {".".join(names) for names in suites} | set(functions)


@pytest.mark.parametrize(("claim", "held_by"), ROWS, ids=[claim.split(" ")[0] for claim, _ in ROWS])
def test_claims_have_tests(claim, held_by, tests):
    names = re.findall(r"`([\w.]+)`", held_by)
    assert names and not [name for name in names if name not in tests], claim


def test_no_claim_is_left_out():
    told = set(re.findall(r"\b[LMNZTC]\d+\b", " ".join(claim for claim, _ in ROWS) + REASONS))
    assert told == {f"{letter}{number}" for letter, last in CLAIMS.items() for number in range(1, last + 1)}
