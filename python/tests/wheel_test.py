"""The package as it is installed: from a wheel, and in place for developers, each in a fresh environment."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

import pytest

pytest.importorskip("scikit_build_core")

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_BYTES = 20 << 20
FIRST_RESULT = """
import torch, armillary
q, k, v = (torch.randn(1, 8, 2, 4) for _ in range(3))
assert armillary.SequenceParallel().attention(q, k, v).shape == (1, 8, 2, 4)
assert armillary.verify("ring", world=4, seq=64)
fmt = [line.split()[-1] for line in open("/proc/self/maps") if "libfmt" in line]
print(armillary.__version__, armillary.__file__, *fmt[:1], sep="\\n")
"""


def has_objects():
    """Whether ccache can have the objects of the release build for another folder."""
    try:
        answer = subprocess.run(["ccache", "--get-config=base_dir"], capture_output=True, text=True)
    except FileNotFoundError:
        return False
    base = answer.stdout.strip()
    return bool(base) and str(ROOT).startswith(base)


if not (os.environ.get("ARMILLARY_TEST_ALL") or has_objects()):
    reason = "[SKIP] building a wheel from nothing takes minutes: ./dev test --all, or base_dir of ccache"
    pytest.skip(reason, allow_module_level=True)


def run(*command, check=True):
    """A command without the environment of the build tree."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.setdefault("CXX", "c++")  # the name that CMake chooses, and ccache has objects for
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert not check or result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Makes fresh environments that have the torch of this one, and nothing of ours."""

    def make(name):
        folder = tmp_path_factory.mktemp(name) / "venv"
        run(sys.executable, "-m", "venv", str(folder))
        packages = next(folder.glob("lib/python3*/site-packages"))
        (packages / "torch_of_the_tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        return folder / "bin" / "python", packages

    return make


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", ".", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(folder))
    return next(folder.glob("armillary-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, environment):
    python, packages = environment("installed")
    run(str(python), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel))
    return python, packages


def test_the_wheel_is_small_and_has_types_and_licenses(wheel):
    assert wheel.stat().st_size < MOST_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    licenses = ("LICENSE", "fmt.txt", "utf8proc.txt")
    for part in ("py.typed", "_native.pyi", "_build.py", "sequence_parallel.py", *licenses):
        assert any(name.endswith(part) for name in names), names
    assert not any("test" in name for name in names)


def test_the_wheel_stands_alone(installed):
    python, packages = installed
    version, where, *fmt = run(str(python), "-c", FIRST_RESULT).stdout.split()
    assert version == "0.1.0" and where.startswith(str(packages))
    assert not fmt or fmt[0].startswith(str(packages)), "it uses the fmt that it brings"


def test_another_torch_is_one_line_with_both_versions(installed):
    python, packages = installed
    build = packages / "armillary" / "_build.py"
    true = build.read_text()
    build.write_text('TORCH_VERSION = "2.9.1+other"\n')
    result = run(str(python), "-c", "import torch; print(torch.__version__); import armillary", check=False)
    build.write_text(true)
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 1
    assert "compiled against torch 2.9.1+other, and torch " + result.stdout.strip() + " is imported" in last


def test_installed_in_place(environment, wheel):
    """After the wheel, whose objects it shares."""
    python, _ = environment("in_place")
    install = ["install", "--no-build-isolation", "--no-deps", "--no-index", "-e", "."]
    run(str(python), "-m", "pip", *install)
    _, where, *_ = run(str(python), "-c", FIRST_RESULT).stdout.split()
    assert where == str(ROOT / "python" / "armillary" / "__init__.py")
