"""The page of a run of `armillary train` in headless Chromium: no network, no error, and all its curves."""

import json
import re
import subprocess

import pytest
from browser import PROGRAM, ROOT, browser, document, text_of

needs_browser = pytest.mark.skipif(browser() is None, reason="[SKIP] no Chromium (./dev setup test)")
pytestmark = pytest.mark.skipif(
    not PROGRAM.is_file(), reason="[SKIP] build/bin/armillary is not built: ./dev build"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with validation, beside a simulated step."""
    run = tmp_path_factory.mktemp("watched") / "run"
    settings = {
        "training.dataset_path": ROOT / "README.md",
        "training.validation_path": ROOT / "CONTRIBUTING.md",
        "training.validation_interval": 3,
        "training.validation_sequences": 2,
        "training.seq_len": 256,
        "training.steps": 7,
        "training.mixed_precision_param": "bfloat16",
        "model.dim": 64,
        "model.n_layers": 2,
        "parallelism.context_parallel_degree": 2,
        "metrics.cluster": "c6",
        "metrics.enable_tensorboard": "true",
        "job.dump_folder": run,
    }
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words = [PROGRAM, "train", ROOT / "recipes" / "default.toml", *flags]
    result = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return run


def data_of(page):
    text = page.read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(match.group(1))


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_page_is_whole_and_has_the_lines_of_the_run(folder):
    text = (folder / "run.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|<link|@import|fetch\(|XMLHttpRequest", text)
    data, lines = data_of(folder / "run.html"), lines_of(folder)
    for key in ("step", "loss", "grad_norm", "lr", "step_s", "exposed_s", "memory_bytes"):
        assert data["series"][key] == [line[key] for line in lines], key
    assert data["series"]["tokens_per_s"] == [2 * line["tps"] for line in lines]
    assert data["validation"]["step"] == [3, 6, 7]
    assert data["validation"]["loss"] == [
        line["validation_loss"] for line in lines if "validation_loss" in line
    ]
    assert data["state"] == "done" and data["reload_s"] == 0
    simulated = data["simulated"]
    assert simulated["cluster"] == "c6" and simulated["step_s"] > 0 and simulated["tokens_per_s"] > 0


@needs_browser
@pytest.mark.parametrize("mark", ["", "#log"])
def test_draws_every_curve(folder, mark):
    """Each canvas has ink: its data URL is not that of an empty one of its size."""
    script = """
    const all = [...document.querySelectorAll("canvas")];
    const blank = all.filter((canvas) => {
      const empty = document.createElement("canvas");
      [empty.width, empty.height] = [canvas.width, canvas.height];
      return canvas.toDataURL() === empty.toDataURL();
    });
    document.getElementById("title").textContent = `${all.length} ${blank.length}`;
    """
    dom, complaints = document(folder / "run.html", mark=mark, script=script)
    assert not complaints
    assert text_of(dom, "title") == "7 0"
    assert text_of(dom, "summary").startswith("done; step 7 of 7")
    assert "</i>simulated</span>" in dom


@needs_browser
def test_a_page_without_lines_is_drawn(folder, tmp_path):
    """As it is before the first step; it would load itself again."""
    data = data_of(folder / "run.html")
    data["series"] = {key: [] for key in data["series"]}
    data["validation"] = {"step": [], "loss": []}
    data["simulated"] = None
    page = tmp_path / "empty.html"
    text = (folder / "run.html").read_text(encoding="utf-8")
    begin = text.index(">", text.index('id="data"')) + 1
    page.write_text(
        text[:begin] + json.dumps(data) + text[text.index("</script>", begin) :], encoding="utf-8"
    )
    dom, complaints = document(page)
    assert not complaints
    assert "step 0 of 7" in text_of(dom, "summary")
