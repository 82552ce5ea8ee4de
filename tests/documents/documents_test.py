"""Documents show what commands print, lead to files that exist, and stay short."""

import pathlib
import re
import sys

import pytest
from console_blocks import FILES, ROOT, Command, commands, run, same_shape, shape

sys.path.insert(0, str(ROOT / "tools"))
import validation

PAGES = [
    ROOT / name
    for name in FILES
    if name.endswith(".md") and not name.startswith("armillary/lab/bench/results/")
]
DOCUMENTS = [page for page in PAGES if page.parent == ROOT or ROOT / "docs" in page.parents]
SOURCES = (".h", ".cpp", ".py", ".sh", ".js", ".toml", ".cmake")
README, ARCHITECTURE = ROOT / "README.md", ROOT / "docs" / "architecture.md"


def text(path):
    return path.read_text(encoding="utf-8")


COMMANDS = {path: commands(text(path)) for path in (README, ROOT / "docs" / "quickstart.md")}


@pytest.mark.parametrize("command", sum(COMMANDS.values(), []), ids=lambda command: command.text[:60])
def test_commands_print_what_is_shown(command, tmp_path):
    status, lines = run(command, tmp_path)
    assert status == command.status, "\n".join(lines)
    assert same_shape(command.expected, lines), "\n".join(["given:", *lines, "expected:", *command.expected])


def test_documents_have_commands():
    first, quickstart = COMMANDS.values()
    assert first and len(quickstart) >= 8
    assert any(command.status for command in quickstart), "a refusal is shown too"


def test_shapes():
    assert shape("loss:  5.5452  tps: 1,234") == shape("loss: 4.1e-05 tps: 9")
    assert shape("tps: 9  mfu: -") == shape("tps: 9  mfu: 31.2%")
    assert same_shape(["a 1", "...", "b"], ["a 2", "x", "y", "b"])
    assert not same_shape(["a 1", "b"], ["a 2", "x", "b"])
    assert not same_shape(["a"], ["a", "b"])
    assert not same_shape(["ring: exact"], ["ring: wrong"])


def test_commands_are_found():
    commands_of_text = commands("text\n```console\n$ a b  # exits with 2\nx\n$ c\n```\n")
    assert commands_of_text == [Command("a b", 2, ["x"]), Command("c", 0, [])]


def anchors(path):
    headings = re.findall(r"^#+ (.*)$", text(path), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_links_of_documents():
    """Every relative link of a document leads to a file, and to a heading where it names one."""
    broken = []
    for path in PAGES:
        prose = re.sub(r"```.*?```|`[^`]*`", "", text(path), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            name, _, anchor = link.partition("#")
            if "://" in name:
                continue
            target = path.parent / pathlib.Path(name) if name else path
            if not target.exists() or anchor and anchor not in anchors(target):
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert not broken, broken


def test_sources_name_documents_that_exist():
    """Comments and texts of sources name documents by their paths."""
    missing = []
    for name in FILES:
        if not name.endswith(SOURCES):
            continue
        for page in re.findall(r"\b(?:docs|armillary)/[\w/]+\.md\b", text(ROOT / name)):
            if not (ROOT / page).exists():
                missing.append(f"{name}: {page}")
    assert not missing, missing


@pytest.mark.parametrize("name", ["architecture", "adding_a_strategy"])
def test_files_that_are_named_exist(name):
    names = re.findall(r"`([\w/]+\.(?:h|cpp|py))`", text(ROOT / "docs" / f"{name}.md"))
    assert len(names) > 5
    assert not [one for one in names if not any(f"/{path}".endswith(f"/{one}") for path in FILES)]


def test_lines_wrap():
    """Prose has at most 120 columns; tables, words without blanks and what programs print may have more."""
    long = []
    for path in PAGES:
        lines = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text(path), flags=re.DOTALL)
        for number, line in enumerate(lines.splitlines(), 1):
            if " " in line[120:] and not line.startswith("|"):
                long.append(f"{path.relative_to(ROOT)}:{number}")
    assert not long, long


def test_documents_are_short():
    assert sum(path.stat().st_size for path in DOCUMENTS) < 150 * 1024
    assert (ROOT / "CHANGELOG.md").stat().st_size < 10_000
    assert len(text(README).splitlines()) < 120
    assert len(text(ARCHITECTURE).splitlines()) <= 120


def test_words_have_one_meaning():
    """The glossary is short, and no word stands in two rows."""
    table = text(ARCHITECTURE).split("| word | meaning |\n|---|---|\n")[1]
    words = [line.split(" | ")[0].strip("| ") for line in table.splitlines() if line.startswith("|")]
    assert 20 <= len(words) <= 25
    single = [word.strip() for row in words for word in row.split(",")]
    assert len(set(single)) == len(single)


def test_cpp_of_the_readme_is_an_example():
    (block,) = re.findall(r"```cpp\n(.*?)```", text(README), flags=re.DOTALL)
    assert block in text(ROOT / "examples" / "01_exact.cpp")


def test_speeds_of_the_readme_were_recorded():
    """Every number of a row stands in the file that the row names."""
    rows = re.findall(
        r"^\|(.*)\| \[\w+\]\((armillary/lab/bench/results/\S+\.md)\) \|$", text(README), flags=re.MULTILINE
    )
    assert len(rows) >= 3
    for row, source in rows:
        times = re.findall(r"\b\d+\.\d+\b", row)
        assert len(times) >= 7, row
        assert not [time for time in times if f" {time} " not in text(ROOT / source)], row


def test_errors_of_the_validation_are_those_that_were_printed():
    shown = text(validation.PAGE).split(validation.LINE)[1]
    assert shown == validation.excerpt(text(validation.GOLDEN)), "renew with tools/validation.py"
