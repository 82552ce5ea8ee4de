"""./dev mutate on a project of two files: what is killed, what survives, and an unchanged checkout."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from mutation import build as building  # noqa: E402
from mutation import trial  # noqa: E402
from mutation.mutant import Mutant, is_plausible  # noqa: E402

HEADER = """#pragma once
inline int twice(int x) {
  return 2 * x;
}
int clamp(int x, int most);
"""
SOURCE = """#include "part/clamp.h"
int clamp(int x, int most) {
  if (x < 0) return 0;
  if (most < 0) return -1;
  return x < most ? x : most;
}
"""
TEST = """#include <gtest/gtest.h>
#include "part/clamp.h"
TEST(Clamp, Works) {
  EXPECT_EQ(clamp(-3, 5), 0);
  EXPECT_EQ(clamp(3, 5), 3);
  EXPECT_EQ(clamp(8, 5), 5);
  EXPECT_EQ(twice(4), 8);
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
find_package(GTest REQUIRED)
add_compile_options(-O1)
add_library(armillary_part STATIC part/clamp.cpp)
target_include_directories(armillary_part PUBLIC ${CMAKE_SOURCE_DIR})
add_executable(armillary_part_test part/clamp_test.cpp)
target_link_libraries(armillary_part_test armillary_part GTest::gtest_main)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    if not shutil.which("ninja") or not shutil.which("cmake"):
        pytest.skip("cmake and ninja are required")
    root = tmp_path_factory.mktemp("small")
    (root / "part").mkdir()
    for name, text in {
        "part/clamp.h": HEADER,
        "part/clamp.cpp": SOURCE,
        "part/clamp_test.cpp": TEST,
        "CMakeLists.txt": CMAKE,
    }.items():
        (root / name).write_text(text)
    subprocess.run(
        ["cmake", "-G", "Ninja", "-S", root, "-B", root / "build"], check=True, capture_output=True
    )
    subprocess.run(["cmake", "--build", root / "build"], check=True, capture_output=True)
    return root


@pytest.fixture(scope="module")
def trials(small):
    return trial.Trial(building.Build(small, small / "build"), jobs=1)


@pytest.mark.parametrize(
    ("file", "line", "after", "kind"),
    [
        ("part/clamp.cpp", 3, "  if (x > 0) return 0;\n", "killed"),
        ("part/clamp.cpp", 4, "  if (most < 0) return 1;\n", "survived"),  # No test has a negative `most`.
        ("part/clamp.cpp", 5, "  return x <= most ? x : most;\n", "same"),
        ("part/clamp.cpp", 5, "  return x < most ? y : most;\n", "not compiled"),
        ("part/clamp.cpp", 3, "  for (volatile int y = 0; y == 0;) {}\n", "killed"),
        ("part/clamp.h", 3, "  return 3 * x;\n", "killed"),  # A header: what includes it is compiled again.
    ],
)
def test_verdicts(small, trials, monkeypatch, file, line, after, kind):
    monkeypatch.setattr(building, "PATIENCE_S", 2)
    text = (small / file).read_text()
    before = text.splitlines(keepends=True)[line - 1]
    verdict = trials.run(Mutant(file, line, before, after))
    assert verdict.kind == kind, verdict.by
    assert (small / file).read_text() == text


def test_a_test_that_fails_without_a_mistake_is_named(small):
    trials = trial.Trial(building.Build(small, small / "build"), jobs=1)
    program = small / "build" / "bin" / "armillary_part_test"
    kept = program.read_bytes()
    program.write_text("#!/bin/sh\nexit 3\n")
    try:
        with pytest.raises(trial.FailsAnywayError, match="armillary_part_test: exit code 3"):
            trials.seconds_of("armillary_part_test")
    finally:
        program.write_bytes(kept)
    assert trials.seconds_of("armillary_part_test") < 5


def test_a_mutant_of_a_line_that_moved_is_found_again():
    mutant = Mutant("a.cpp", 1, "x = 1;\n", "x = 2;\n")
    assert mutant.source("y = 1;\nx = 1;\n") == "y = 1;\nx = 2;\n"
    assert mutant.source("y = 1;\n") is None


@pytest.mark.parametrize(
    ("before", "after", "plausible"),
    [
        ("  if (a < b) {\n", "  if (a <= b) {\n", True),
        ("  std::vector<int> a;\n", "  std::vector<=int> a;\n", False),
        ("  std::int64_t n = 0;\n", "  std::int0_t n = 0;\n", False),
        ("  std::int64_t n = 0;\n", "  std::int64_t n = (0+1);\n", True),
        ("  x.append(a);\n", "  x.appbegin(a);\n", False),
        ("  x.clear();\n", "  /*x.clear();*/\n", True),
        ("  const int x = f(a);\n", "  /*const int x = f(a);*/\n", False),
        ("  f(a);\n", "  f(a);  break;\n", False),
        ('  fail("a - b", a);\n', '  fail("a + b", a);\n', False),
    ],
)
def test_only_what_somebody_could_write_is_drawn(before, after, plausible):
    assert is_plausible(before, after) == plausible
