"""The page of `armillary report` in headless Chromium: no network, no error, and it follows keys."""

import json
import re
import shlex
import subprocess

import pytest
from browser import PROGRAM, browser, chromium, document, make_report, text_of

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


def data_of(page):
    """The JSON object in a page."""
    text = page.read_text(encoding="utf-8")
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL).group(1)
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return {name: make_report(folder / f"{name}.html", *flags) for name, flags in PROBLEMS.items()}


def test_page_is_whole(pages):
    """Nothing is loaded from elsewhere, and the data is one JSON object."""
    text = pages["ring"].read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|<link|@import|fetch\(|XMLHttpRequest", text)
    data = data_of(pages["ring"])
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
def test_phases_of_inference(pages, tmp_path):
    """A table of both phases; other pages have none."""
    flags = shlex.split("--cluster c5 --serve llama3-8b --world 8 --tp 2 --seq 65536 --no-table")
    page = make_report(tmp_path / "serve.html", *flags)
    dom, complaints = document(page)
    assert not complaints
    table = re.search(r'id="phases">(.*?)</table>', dom, re.DOTALL).group(1)
    assert "time to first token" in table and "time per token" in table and "messages of tp" in table
    assert "over cp 4, tp 2" in text_of(dom, "phases-note")
    dom, complaints = document(pages["alone"])
    assert not complaints
    assert re.search(r'id="phases-card"[^>]*hidden', dom)


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
def test_opens_where_something_is_attended(pages):
    """The first step that attends; and no op of the plan is broken over lines."""
    lines = """document.getElementById("title").textContent =
      Math.max(...[...document.querySelectorAll("#grid td span")].map((op) => op.offsetHeight / 17.4));"""
    dom, complaints = document(pages["striped"], script=lines)
    assert not complaints
    assert text_of(dom, "position").startswith("step 3 ")
    assert not text_of(dom, "coverage-note").startswith("0.0 %")
    assert float(text_of(dom, "title")) < 1.5


@needs_browser
def test_link_into_page(pages):
    dom, _ = document(pages["ring"], mark="#pass=1&step=4&rank=3")
    assert text_of(dom, "position") == "step 4 (5 of 9)"
    assert text_of(dom, "tiles-rank") == "3"


@needs_browser
@pytest.mark.parametrize(
    "mark", ["#pass=-1&rank=-1&step=-1", "#pass=0.4&rank=1.4&step=1.4", "#pass=x&rank=99&step=99"]
)
def test_link_to_no_place(pages, mark):
    """A link that names no place goes to the nearest: each panel is drawn, and the position is a step."""
    dom, complaints = document(pages["ring"], mark=mark)
    assert not complaints
    assert re.fullmatch(r"step \d \(\d of [89]\)", text_of(dom, "position"))
    assert "of the visible pairs" in text_of(dom, "coverage-note")
    assert int(text_of(dom, "tiles-rank")) in range(8)


# Tips of the timeline: `tips(x, y)` has the lines of one, `rowOf` finds a row by the first.
TIPS = """
  const canvas = document.querySelector("#gantt canvas:last-of-type");
  const box = canvas.getBoundingClientRect();
  canvas.setPointerCapture = () => {};
  const at = (x, y) => ({ clientX: box.left + x, clientY: box.top + y, pointerId: 1, bubbles: true });
  const send = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, at(x, y)));
  const tips = (x, y) => {
    send("pointermove", x, y);
    const tip = document.getElementById("tip");
    return tip.hidden ? [""] : tip.textContent.split("\\n");
  };
  const alongRow = (y, line) => {
    const said = new Set();
    for (let x = 80; x < box.width; x += 2) said.add(tips(x, y)[line]);
    return said;
  };
  const rowOf = (name) => {  // rows are 6 high and more
    for (let y = 1; y < box.height; y += 5) if (alongRow(y, 0).has(name)) return y;
  };"""
MOUSE = (
    TIPS
    + """
  const y = rowOf("rank 5, compute"), x = box.width - 60;
  const said = [];
  send("pointerdown", x, y); send("pointerup", x, y);
  said.push(document.getElementById("tiles-rank").textContent);
  said.push(/s$/.test(document.getElementById("position").textContent));
  const ops = alongRow(y, 1).size;
  for (let i = 0; i < 8; ++i)
    canvas.dispatchEvent(
      new WheelEvent("wheel", { ...at(x, y), deltaY: -1, ctrlKey: true, cancelable: true }));
  const zoomed = alongRow(y, 1);
  said.push(zoomed.size < ops);
  for (let i = 0; i < 4; ++i) {
    send("pointerdown", 200, y); send("pointermove", box.width - 60, y); send("pointerup", box.width - 60, y);
  }
  said.push([...alongRow(y, 1)].join() !== [...zoomed].join());
  document.getElementById("title").textContent = said.join("; ");"""
)


@needs_browser
def test_mouse(pages):
    """On the timeline the mouse shows ops, chooses a rank and a time, zooms and drags."""
    dom, complaints = document(pages["ring"], script=MOUSE)
    assert not complaints
    assert text_of(dom, "title") == "5; true; true; true"


COLOURS = """
  const brightness = (r, g, b) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const [page, ink] = ["backgroundColor", "color"].map((key) =>
    brightness(...getComputedStyle(document.body)[key].match(/[0-9.]+/g).slice(0, 3).map(Number)));
  const kinds = [...document.querySelectorAll("canvas")].filter((c) => c.width && c.height).map((canvas) => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const colours = new Set();
    for (let i = 0; i < pixels.length; i += 4)
      if (pixels[i + 3] > 200) colours.add(pixels.slice(i, i + 3).join());
    return `${canvas.id || canvas.parentElement.id}=${colours.size}`;
  });
  document.getElementById("title").textContent = `${page} ${ink} ${kinds.join(" ")}`;"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(pages, dark):
    """The page follows the scheme of the system; on each canvas there are several colours."""
    flags = ["--force-dark-mode"] if dark else []
    dom, complaints = document(pages["ring"], script=keys("ArrowRight") + COLOURS, flags=flags)
    assert not complaints
    page, ink, *kinds = text_of(dom, "title").split()
    assert (float(page) < 60 and float(ink) > 180) if dark else (float(page) > 200 and float(ink) < 80)
    drawn = dict(kind.split("=") for kind in kinds)
    for canvas in ("rings", "coverage", "topology", "gantt"):
        assert int(drawn[canvas]) >= 3, drawn


@needs_browser
def test_measured_over_simulated(tmp_path):
    """A run that was recorded has rows of its own on the timeline."""
    case = shlex.split("--world 2 --heads 2 --head-dim 128 --dtype bf16 --strategy ring")
    bench = [PROGRAM, "bench", "layer", "--tokens", "256", "--seconds", "0", "--no-kernels", *case]
    subprocess.run([*bench, "--flight", tmp_path / "run"], check=True, capture_output=True, timeout=300)
    same = ["--cluster", "c6", "--seq", "512", "--layout", "zigzag", *case]
    page = make_report(tmp_path / "run.html", *same, "--run", tmp_path / "run")
    script = """document.getElementById("title").textContent =
      [0, 1].map((rank) => rowOf(`rank ${rank}, compute, measured`) > 0).join(" ");"""
    dom, complaints = document(page, script=TIPS + script)
    assert not complaints
    assert text_of(dom, "title") == "true true"
    assert "the simulation takes" in text_of(dom, "gantt-note")


def test_problem_of_a_run(tmp_path):
    """The problem of a training run is its own: fp32, packed documents, and the last of them."""
    (tmp_path / "text").mkdir()
    for i in range(40):
        (tmp_path / "text" / f"{i}.txt").write_text("x" * (20 + 3 * i))
    (tmp_path / "recipe.toml").write_text(
        f'[job]\ndump_folder = "{tmp_path}/run"\n[model]\ndim = 32\nn_layers = 2\nn_heads = 2\n'
        f'[training]\ndataset_path = "{tmp_path}/text"\nseq_len = 256\nsteps = 3\nglobal_batch_size = 2\n'
        '[parallelism]\ncontext_parallel_degree = 2\nlayout = "zigzag"\nmask = "documents"\n'
    )
    subprocess.run([PROGRAM, "train", tmp_path / "recipe.toml"], check=True, capture_output=True, timeout=300)
    recorded = json.loads((tmp_path / "run/flight/problems.json").read_text())["problems"]
    assert len({problem["flags"]["--mask"] for problem in recorded}) == len(recorded) > 3

    beside = ["report", "--cluster", "c6", "--no-table", "--run", tmp_path / "run", "--out"]
    page = tmp_path / "page.html"
    result = subprocess.run([PROGRAM, *beside, page], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    data = data_of(page)
    assert (data["world"], data["heads"], data["head_dim"], data["dtype"]) == (2, 2, 16, "fp32")
    assert data["mask"] == recorded[-1]["flags"]["--mask"]
    assert [one["measured"]["step"] for one in data["passes"]] == [3, 3]
    assert re.fullmatch(
        r"Measured on \S+; simulated on c6, another machine: armillary calibrate describes this one\. "
        r"A100-SXM-80GB has no kernels of fp32: simulated with those of bf16\.",
        data["machines"],
    )
    assert data["machines"] in result.stdout
    refused = subprocess.run([PROGRAM, *beside, page, "--seq", "256"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"report: --seq with --run {tmp_path}/run, which says its problem; leave it out" in refused.stderr


# `count(work)`: shapes that work draws, pictures that it makes and nodes that it changes, counted where the
# browser does it; and the tiles of the table afterwards.
COUNTS = """
  const counts = { drawn: 0, pictures: 0 };
  for (const name of ["fill", "stroke", "fillRect", "strokeRect", "fillText", "drawImage", "putImageData"]) {
    const draw = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (...values) {
      ++counts.drawn;
      return draw.apply(this, values);
    };
  }
  const Picture = window.ImageData;
  window.ImageData = function (...values) {
    ++counts.pictures;
    return new Picture(...values);
  };
  const observer = new MutationObserver(() => {});
  observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  const nodes = (record) => record.addedNodes.length + record.removedNodes.length || 1;
  const count = (work) => {
    observer.takeRecords();
    counts.drawn = counts.pictures = 0;
    work();
    const changed = observer.takeRecords().reduce((sum, record) => sum + nodes(record), 0);
    return { ...counts, changed, tiles: document.querySelectorAll("#tiles td").length };
  };"""


@needs_browser
def test_64_ranks_without_stutter(tmp_path):
    """A move through a pass of 64 ranks draws and changes what follows the cursor, and not what a new size of
    the page does: the lanes, the plan, the loads and the mask of the coverage stay."""
    page = make_report(tmp_path / "large.html", *LARGE)
    script = """
      const move = () => document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
      const moves = Array.from({ length: 30 }, () => count(move));
      document.body.style.width = "700px";
      const all = count(() => window.dispatchEvent(new Event("resize")));
      document.getElementById("title").textContent = JSON.stringify({ moves, all });"""
    dom, complaints = document(page, script=COUNTS + script)
    assert not complaints
    counts = json.loads(text_of(dom, "title"))
    channels = len(data_of(page)["passes"][0]["channels"])
    # A rank: three rings with their ground and up to six tiles, its mark and number, and the line and head of
    # a message of Q and one of K. A channel: its line, and the point and name of the end that it adds.
    drawn = 64 * (3 * (1 + 6) + 2 + 2 * 2) + 3 * channels + 50
    for one in counts["moves"]:
        assert 64 * 4 < one["drawn"] < drawn, one
        # The bar, the notes and two rows of the plan; a tile of the chosen rank is a cell with its colours.
        assert 0 < one["changed"] < 40 + 8 * one["tiles"], one
        assert one["pictures"] == 0, one
    assert counts["all"]["drawn"] > 2 * drawn, counts["all"]
    assert counts["all"]["changed"] > 10 * (40 + 8 * counts["all"]["tiles"]), counts["all"]
    assert counts["all"]["pictures"] == 1, counts["all"]


@needs_browser
def test_prints(pages, tmp_path):
    """The page becomes a PDF of some pages."""
    pdf = tmp_path / "page.pdf"
    chromium(pages["ring"], "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) <= 12
