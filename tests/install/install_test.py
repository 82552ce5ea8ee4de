"""The library as others use it: installed, moved, and found by CMake and pkg-config from outside the tree."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("ARMILLARY_BUILD", "build")
INCLUDE = re.compile(r'^#include ["<](.+)[">]', re.MULTILINE)
# A name of another library, and the beginning of the header that brings it.
BRINGS = {"at::": "ATen/", "c10::": ("c10/", "ATen/"), "fmt::": "fmt/", "torch::": "torch/"}
WITH_TORCH = ("attention", "kernel", "model", "runtime", "serve", "train")


def run(*command, cwd=None, **variables):
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """The library in a folder that was moved after it was installed there."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", BUILD, "--prefix", folder / "first", "--component", "cpp")
    return (folder / "first").rename(folder / "prefix")


def headers(prefix):
    names = {path.relative_to(prefix / "include").as_posix() for path in prefix.rglob("*.h")}
    assert len(names) > 50 and "armillary/version.h" in names
    return sorted(names)


def has_torch(prefix):
    return (prefix / "lib/libarmillary_attention.a").exists()


def configure(source, build, prefix, *definitions):
    prefix_flag = f"-DCMAKE_PREFIX_PATH={prefix}"
    return run("cmake", "-G", "Ninja", "-S", source, "-B", build, prefix_flag, *definitions)


def inclusions(prefix):
    """{header: what it includes}, in the order of its lines."""
    return {name: INCLUDE.findall((prefix / "include" / name).read_text()) for name in headers(prefix)}


def visit(included, name, names):
    """Adds a header and what it includes, by itself or through others of ours, in the order in which the
    preprocessor comes to the end of their includes. Yields those of ours."""
    if name in names:
        return
    names.add(name)
    for other in included.get(name, ()):
        yield from visit(included, other, names)
    if name in included:
        yield name


def closure(included, name):
    names = set()
    assert list(visit(included, name, names))[-1] == name
    return names


def test_public_headers_are_closed_under_inclusion(prefix):
    """Headers of ours that a public one includes are public, and it or they include those of others."""
    included = inclusions(prefix)
    for name in included:
        text = re.sub(r"//.*", "", (prefix / "include" / name).read_text())
        reached = closure(included, name)
        missing = {other for other in reached if other.startswith("armillary/")} - included.keys()
        assert not missing, f"{name} includes {missing}, not installed"
        for prefix_of_names, header in BRINGS.items():
            if re.search(rf"\b{prefix_of_names}", text):
                assert any(other.startswith(header) for other in reached), f"{name}: {prefix_of_names}"
        # A text sees what is included before it: all that its header includes.
        before = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).rpartition("#include")[0]
        assert not re.search(r"^[^#\s]", before, re.MULTILINE), f"{name}: an include below other lines"


def units_of(included, names):
    """Lists of headers, each for one unit that includes them one behind the other. The text of each of
    `names` comes in one of the units behind nothing but what its header includes, by itself or through
    others: there it compiles if and only if it compiles alone."""
    reached = {name: closure(included, name) for name in names}
    left, units = set(names), []
    while left:
        names, unit = set(), []
        while following := [name for name in left if names <= reached[name]]:
            unit.append(min(following, key=lambda name: (len(reached[name]), name)))
            for name in visit(included, unit[-1], names):
                if names <= reached.get(name, set()):
                    left.discard(name)
            assert unit[-1] not in left
        units.append(unit)
    return units


def test_units_prove_each_header():
    """c stands behind a, which it includes; b, which includes nothing, needs a unit of its own."""
    included = {"a": [], "b": [], "c": ["<vector>", "a"], "d": ["b", "c"]}
    assert sorted(units_of(included, included)) == [["a", "c", "d"], ["b"]]


def test_public_headers_compile_alone(prefix, tmp_path):
    """Headers of others are read once for all; which standard ones are missing,
    tools/check_standard_includes.py finds."""
    included = inclusions(prefix)
    project = ["cmake_minimum_required(VERSION 3.25)", "project(headers LANGUAGES CXX)"]
    project += ["find_package(Armillary REQUIRED)"]
    for component in ["plan", "armillary"] if has_torch(prefix) else ["plan"]:
        names = [
            name for name in included if (name.split("/")[1] in WITH_TORCH) == (component == "armillary")
        ]
        files = []
        for unit in units_of(included, names):
            files.append(f"{unit[-1].replace('/', '_')}.cpp")
            (tmp_path / files[-1]).write_text("".join(f"#include <{name}>\n" for name in unit))
        assert len(files) < len(names) and len(set(files)) == len(files)
        of_others = {
            f"<{other}>" for name in names for other in included[name] if not other.startswith("armillary/")
        }
        project += [f"add_library({component} OBJECT {' '.join(files)})"]
        project += [f"target_link_libraries({component} Armillary::{component})"]
        project += [f"target_precompile_headers({component} PRIVATE {' '.join(sorted(of_others))})"]
    (tmp_path / "CMakeLists.txt").write_text("\n".join(project))
    configure(tmp_path, tmp_path / "build", prefix)
    run("cmake", "--build", tmp_path / "build")


def test_example_project(prefix, tmp_path):
    """examples/install, out of the tree."""
    source = shutil.copytree(ROOT / "examples/install", tmp_path / "project")
    build = tmp_path / "build"
    configure(source, build, prefix)
    run("cmake", "--build", build)
    assert "0 faults" in run(build / "plan")
    assert "torch" not in run("ldd", build / "plan")
    assert (build / "attention").exists() == has_torch(prefix)
    if has_torch(prefix):
        assert "max |usp on 4 ranks - 1 rank| = " in run(build / "attention", OMP_NUM_THREADS=1)


def test_program(tmp_path):
    """The verbs with libtorch find it from where they are installed."""
    run("cmake", "--install", BUILD, "--prefix", tmp_path, "--component", "program")
    for name in sorted(path.name for path in (tmp_path / "bin").iterdir()):
        assert "Usage: armillary" in run(tmp_path / "bin" / name, "--help")


def pkg_config(prefix, *words):
    return run("pkg-config", *words, PKG_CONFIG_PATH=prefix / "lib/pkgconfig").split()


def test_pkg_config(prefix, tmp_path):
    if not shutil.which("pkg-config"):
        pytest.skip("[SKIP] no pkg-config")
    version = re.search(r"armillary ([0-9.]+)", run(BUILD / "bin/armillary", "--version"))[1]
    plan = ROOT / "examples/install/plan.cpp"
    sources = {"armillary-plan": plan.read_text()}
    if has_torch(prefix):
        sources["armillary"] = (
            "#include <armillary/attention/sequence_parallel_attention.h>\n"
            "int main() { return armillary::attention::sequence_parallel_attention == nullptr; }\n"
        )
    for package, text in sources.items():
        (tmp_path / "use.cpp").write_text(text)
        assert pkg_config(prefix, "--modversion", package) == [version]
        flags = pkg_config(prefix, "--cflags", "--libs", package)
        run("c++", "-std=c++20", "use.cpp", *flags, "-o", package, cwd=tmp_path)
        run(tmp_path / package)


REFUSALS = """cmake_minimum_required(VERSION 3.25)
project(refused LANGUAGES CXX)
function(ask)
  find_package(Armillary QUIET ${ARGN})
  message(STATUS "${ARGN}: ${Armillary_FOUND}: ${Armillary_NOT_FOUND_MESSAGE}")
endfunction()
ask(COMPONENTS gpu)
ask(COMPONENTS plan OPTIONAL_COMPONENTS gpu)
set(ARMILLARY_TORCH_ROOT ${CMAKE_CURRENT_SOURCE_DIR})
ask(COMPONENTS armillary)
ask(COMPONENTS c10d)
ask(COMPONENTS plan OPTIONAL_COMPONENTS armillary)
set(ARMILLARY_TORCH_ROOT /no/torch)
ask()
"""


def test_what_is_missing_is_said(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(REFUSALS)
    old = tmp_path / "include/torch/headeronly/version.h"
    old.parent.mkdir(parents=True)
    old.write_text("".join(f"#define TORCH_VERSION_{x}\n" for x in ("MAJOR 2", "MINOR 9", "PATCH 1")))
    text = configure(tmp_path, tmp_path / "build", prefix)
    said = [line[3:] for line in text.splitlines() if re.match("-- (|COMPONENTS.*): [01]", line)]
    built = "plan, " if has_torch(prefix) else "plan"
    assert said[0].startswith(
        f"COMPONENTS;gpu: 0: component gpu; a component that was built is required: {built}"
    )
    assert said[1].startswith("COMPONENTS;plan;OPTIONAL_COMPONENTS;gpu: 1")
    if not has_torch(prefix):
        return
    for line, component in zip(said[2:4], ("armillary", "c10d"), strict=True):
        assert line.startswith(
            f"COMPONENTS;{component}: 0: torch 2.9.1 in '{tmp_path}'; the folder of torch 2."
        )
    assert said[4].startswith("COMPONENTS;plan;OPTIONAL_COMPONENTS;armillary: 1")
    assert said[5].startswith(": 0: no libtorch in '/no/torch'; the folder of torch 2.")
