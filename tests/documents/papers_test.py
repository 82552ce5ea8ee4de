"""Rows of docs/papers.md: a feature has a test that exists, and one that is not yet there is refused."""

import re

import pytest
from console_blocks import FILES, ROOT, Command, run

PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
RECIPE = "train recipes/default.toml --dry-run --set training.dataset_path=README.md"


def rows():
    """[ids, where, shown by] of all tables of features."""
    tables = re.findall(r"\| id \| where \| shown by \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    return [[cell.strip() for cell in line.split(" | ")] for table in tables for line in table.splitlines()]


BUILT = [row for row in rows() if row[1] != "not yet"]
MISSING = [row for row in rows() if row[1] == "not yet"]


def names(text):
    """Names of sources in backticks, a file each."""
    return re.findall(r"`([\w/]+\.(?:cpp|h|py))`", text)


def exists(name):
    return any(path == name or path.endswith(f"/{name}") for path in FILES)


def test_the_page_has_rows():
    assert len(BUILT) > 50 and MISSING
    assert all(len(row) == 3 for row in rows())


@pytest.mark.parametrize("row", BUILT, ids=lambda row: row[0].strip("| ").split(",")[0])
def test_features_have_tests(row):
    tests = names(row[2])
    assert tests, "a test is required"
    assert all(name.endswith(("_test.cpp", "_test.py")) for name in tests), tests
    assert not [name for name in names(row[1]) + tests if not exists(name)]


@pytest.mark.parametrize("row", MISSING, ids=lambda row: row[0].strip("| "))
def test_features_that_are_not_there_are_refused(row, tmp_path):
    flags = re.search(r"`([^`]+)`", row[2]).group(1).replace("train", RECIPE, 1)
    status, lines = run(Command(f"armillary {flags}", 2, []), tmp_path)
    key = re.findall(r"(\w+)=", flags)[-1]
    # A refusal of a mesh names the axis.
    name = {"tensor_parallel_degree": "tp", "pipeline_parallel_degree": "pp"}.get(key, key)
    assert status == 2 and re.search(rf"\b{name}\b", "\n".join(lines)), (flags, lines)
