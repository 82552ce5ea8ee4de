"""The README, the quickstart and the examples run as they are; the reference has all public names."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import launched
import pytest

import armillary

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "python").glob("*.py"))
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def python_blocks(page):
    """The blocks of Python in a page, as one script."""
    pieces = page.read_text().split("```")
    return "\n".join(piece.removeprefix("python\n") for piece in pieces[1::2] if piece.startswith("python\n"))


#: Behind the block of the README.
COMPARED = """
one_device = torch.nn.functional.scaled_dot_product_attention(
    *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
).transpose(1, 2)
assert torch.allclose(whole, one_device, atol=1e-5)
print("equal to one device")
armillary.leave_groups()
dist.destroy_process_group()
"""


def test_readme(tmp_path):
    script = tmp_path / "readme.py"
    script.write_text(python_blocks(ROOT / "README.md") + COMPARED)
    assert launched.forked(2, str(script)).count("equal to one device") == 2


@needs_transformers
def test_quickstart(tmp_path):
    script = tmp_path / "quickstart.py"
    script.write_text(python_blocks(ROOT / "docs" / "python_quickstart.md"))
    assert "equal to one device" in launched.forked(2, str(script))


@needs_transformers
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_train(example):
    # One of them as users start it.
    start = launched.torchrun if example.stem == "llama_torchrun" else launched.forked
    lines = start(4 if "fsdp2" in example.stem else 2, str(example)).splitlines()
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step") and "loss" in line]
    assert len(losses) == 5 and losses[-1] < losses[0], lines


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short(example):
    assert len(example.read_text().splitlines()) < 60


def test_reference(tmp_path):
    page = tmp_path / "reference.html"
    subprocess.run([sys.executable, str(ROOT / "tools" / "python_reference.py"), str(page)], check=True)
    text = page.read_text()
    for name in set(armillary.__all__) - {"masks"}:
        assert f'id="armillary.{name}"' in text, name
    for name in ("masks.window", "hf.install", "SequenceParallel.attention", "Plan.to_json"):
        assert f'id="armillary.{name}"' in text, name
