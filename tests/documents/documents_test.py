"""Documents that show commands show what the commands print."""

import pathlib
import re

import pytest
from console_blocks import ROOT, Command, commands, run, same_shape, shape

QUICKSTART = commands((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", QUICKSTART, ids=lambda command: command.text[:60])
def test_quickstart(command, tmp_path):
    status, lines = run(command, tmp_path)
    assert status == command.status, "\n".join(lines)
    assert same_shape(command.expected, lines), "\n".join(["given:", *lines, "expected:", *command.expected])


def test_quickstart_has_commands():
    assert len(QUICKSTART) >= 8
    assert any(command.status for command in QUICKSTART), "a refusal is shown too"


def test_shapes():
    assert shape("loss:  5.5452  tps: 1,234") == shape("loss: 4.1e-05 tps: 9")
    assert shape("tps: 9  mfu: -") == shape("tps: 9  mfu: 31.2%")
    assert same_shape(["a 1", "...", "b"], ["a 2", "x", "y", "b"])
    assert not same_shape(["a 1", "b"], ["a 2", "x", "b"])
    assert not same_shape(["a"], ["a", "b"])
    assert not same_shape(["ring: exact"], ["ring: wrong"])


def test_commands_are_found():
    found = commands("text\n```console\n$ a b  # exits with 2\nx\n$ c\n```\n")
    assert found == [Command("a b", 2, ["x"]), Command("c", 0, [])]


def test_links_of_documents():
    """Every relative link of a document leads to a file."""
    broken = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        prose = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
            if "://" not in target and not (path.parent / pathlib.Path(target)).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert not broken, broken
