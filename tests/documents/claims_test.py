"""Tests that lists of claims name exist, and no claim of theirs is left out."""

import re

import pytest
from console_blocks import FILES, ROOT

CLAIMS = {
    "training": {"L": 8, "M": 8, "N": 5, "Z": 6, "T": 7, "C": 10},
    "reasons": {"D": 6, "I": 13},
}
FILES_OF_CLAIMS = {"training": "docs/training.md", "reasons": "armillary/README.md"}
PAGES = {page: (ROOT / name).read_text(encoding="utf-8") for page, name in FILES_OF_CLAIMS.items()}
ROWS = {page: re.findall(r"^\| (\w+\d.*?) \| (`.*) \|$", text, re.MULTILINE) for page, text in PAGES.items()}
ALL_ROWS = [row for rows in ROWS.values() for row in rows]


def sources(ending):
    return [(ROOT / name).read_text(encoding="utf-8") for name in FILES if name.endswith(ending)]


@pytest.fixture(scope="module")
def tests():
    """Names of all tests as the pages write them."""
    cpp = "\n".join([*sources("_test.cpp"), *sources("tests/conformance/mesh.cpp")])
    suites = re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", cpp, re.MULTILINE)
    functions = re.findall(r"^def (test_\w+)\(", "\n".join(sources("_test.py")), re.MULTILINE)
    return {".".join(names) for names in suites} | set(functions)


@pytest.mark.parametrize(("claim", "held_by"), ALL_ROWS, ids=[claim.split(" ")[0] for claim, _ in ALL_ROWS])
def test_claims_have_tests(claim, held_by, tests):
    names = re.findall(r"`([\w.]+)`", held_by)
    assert names and not [name for name in names if name not in tests], claim


@pytest.mark.parametrize("page", CLAIMS)
def test_no_claim_is_left_out(page):
    claims = CLAIMS[page]
    reasons = PAGES[page].split("Without a test:")[1]
    letters = "".join(claims)
    told = set(re.findall(rf"\b[{letters}]\d+\b", " ".join(claim for claim, _ in ROWS[page]) + reasons))
    assert told == {f"{letter}{number}" for letter, last in claims.items() for number in range(1, last + 1)}
