"""Pages in headless Chromium: the document after its scripts ran, and what they complained about."""

import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "bin" / "armillary"
NAMES = ["chromium", "chromium-browser", "google-chrome"]

# Frames are drawn at once, so that a script sees what they do, and ends before the document is dumped.
AT_ONCE = "<script>window.requestAnimationFrame = (draw) => (draw(performance.now()), 1);</script>"


def browser():
    """The path of Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def chromium(page, *flags, mark=""):
    """(standard output, messages of the console) of a page that is loaded with `mark` behind its address."""
    with tempfile.TemporaryDirectory() as profile:
        result = subprocess.run(
            [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            + ["--enable-logging=stderr", f"--user-data-dir={profile}", *flags]
            + [page.resolve().as_uri() + mark],
            capture_output=True,
            text=True,
            timeout=300,
        )
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


def document(page, mark="", script="", flags=()):
    """The document of a page after its scripts, and `script` behind them, ran in a browser with `flags`."""
    text = page.read_text(encoding="utf-8")
    changed = page.with_suffix(".tested.html")
    text = text.replace("<head>", "<head>" + AT_ONCE, 1).replace(
        "</body>", f"<script>{script}</script></body>"
    )
    changed.write_text(text, encoding="utf-8")
    return chromium(changed, "--window-size=1400,1200", "--dump-dom", *flags, mark=mark)


def text_of(dom, name):
    """The text of the element with that id, without its tags."""
    match = re.search(rf'id="{name}"[^>]*>(.*?)</(?:p|table|h1|span|output)>', dom, re.DOTALL)
    return re.sub(r"<[^>]*>", " ", match.group(1)).strip() if match else None


def make_report(path, *flags):
    """Writes a page with the program."""
    result = subprocess.run(
        [PROGRAM, "report", "--out", path, *flags], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return path
