"""The page of `armillary report` in headless Chromium: no network, no error, and it follows keys."""

import json
import re
import shlex
import statistics

import pytest
from browser import browser, chromium, document, make_report, text_of

needs_browser = pytest.mark.skipif(browser() is None, reason="[SKIP] no Chromium (./dev setup test)")

SMALL = shlex.split("--cluster c6 --world 8 --seq 8192 --heads 8 --kv-heads 2 --head-dim 128 --layout zigzag")
LARGE = shlex.split(
    "--cluster c1 --strategy ring --world 64 --seq 65536 --head-dim 128 --layout zigzag --no-table"
)
PROBLEMS = {
    "ring": SMALL,
    "striped": SMALL[:-1] + ["striped:16", "--strategy", "usp:u=2"],
    "documents": [*SMALL, "--mask", "documents:1000,3000,4192", "--strategy", "tokenring"],
    "replicas": [*SMALL, "--strategy", "startrail:c=2", "--pass", "backward"],
    "alone": shlex.split("--cluster c6 --world 1 --seq 100 --head-dim 128"),
    "empty": shlex.split("--cluster c6 --world 4 --seq 0 --head-dim 128 --pass forward"),
}


def keys(*names):
    """A script that presses keys."""
    return "".join(
        f'document.dispatchEvent(new KeyboardEvent("keydown", {{key: "{name}"}}));' for name in names
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return {name: make_report(folder / f"{name}.html", *flags) for name, flags in PROBLEMS.items()}


def test_page_is_whole(pages):
    """Nothing is loaded from elsewhere, and the data is one JSON object."""
    text = pages["ring"].read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|<link|@import|fetch\(|XMLHttpRequest", text)
    data = json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL).group(1)
    )
    assert data["world"] == 8 and len(data["passes"]) == 2
    assert len(data["strategies"]) > 10


@needs_browser
@pytest.mark.parametrize("name", PROBLEMS)
def test_draws_and_covers(pages, name):
    """At the end of each pass all visible pairs are attended, and no script complains."""
    dom, complaints = document(pages[name], script=keys("End"))
    assert not complaints
    assert "100.0 % of the visible pairs" in text_of(dom, "coverage-note")
    assert text_of(dom, "title").endswith("ranks")


@needs_browser
def test_a_cluster_without_a_summary(pages, tmp_path):
    """The line below the title is then the name alone."""
    text = pages["alone"].read_text(encoding="utf-8")
    page = tmp_path / "bare.html"
    page.write_text(re.sub(r'"summary":"[^"]*"', '"summary":""', text, count=1), encoding="utf-8")
    dom, complaints = document(page)
    assert not complaints
    assert text_of(dom, "summary") == "c6"


@needs_browser
def test_keys(pages):
    dom, complaints = document(
        pages["ring"], script=keys("p", "ArrowRight", "ArrowRight", "ArrowDown", "+", "0")
    )
    assert not complaints
    assert text_of(dom, "position") == "step 2 (3 of 9)"
    assert text_of(dom, "tiles-rank") == "1"
    assert re.search(r'<tr data-step="2" class="now">', dom)
    dom, _ = document(pages["ring"], script=keys("t", "End"))
    assert text_of(dom, "position").endswith("ms") or text_of(dom, "position").endswith("µs")


@needs_browser
def test_link_into_page(pages):
    dom, _ = document(pages["ring"], mark="#pass=1&step=4&rank=3")
    assert text_of(dom, "position") == "step 4 (5 of 9)"
    assert text_of(dom, "tiles-rank") == "3"


@needs_browser
def test_64_ranks_without_stutter(tmp_path):
    """Stepping through a pass of 64 ranks: a move takes at most as long as 100 million steps of a loop, some
    60 ms of a core. The two alternate, so that a busy machine slows both."""
    page = make_report(tmp_path / "large.html", *LARGE)
    script = """const clock = (work) => {
        const begin = performance.now();
        work();
        return performance.now() - begin;
      };
      const loop = () => { let x = 0; for (let i = 0; i < 1e8; ++i) x = (x + i) | 0; window.kept = x; };
      const move = () => document.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
      const shares = [];
      for (let i = 0; i < 30; ++i) shares.push(clock(move) / clock(loop));
      document.getElementById("title").textContent = shares.join(" ");"""
    dom, complaints = document(page, script=script)
    assert not complaints
    shares = [float(share) for share in text_of(dom, "title").split()]
    assert len(shares) == 30
    assert statistics.median(shares) < 1, shares


@needs_browser
def test_prints(pages, tmp_path):
    """The page becomes a PDF of some pages."""
    pdf = tmp_path / "page.pdf"
    chromium(pages["ring"], "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) <= 12
