"""Charts of a table that the program writes: their words, and tables that a chart cannot show."""

import csv
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from bench import contest, plots

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
POINT = {"world": 2, "seq": 4096, "heads": 8, "bandwidth": 1, "fits": 1, "cluster": "c6"}


def table(path, *rows):
    """A table with the columns of POINT and of `rows`."""
    rows = [{**POINT, **row} for row in rows]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(strategy, total_s, **more):
    return {"strategy": strategy, "total_s": total_s, "flops_per_rank": 1e12 / total_s, **more}


def chart(kind, path):
    """The words of a chart, in their order."""
    pytest.importorskip("matplotlib", reason="[SKIP] no matplotlib (./dev setup test)")
    out = path.with_suffix(".svg")
    plots.draw(kind, path, out)
    text = out.read_text(encoding="utf-8")
    return [word.strip() for word in re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", text)]


def refusal(kind, path):
    with pytest.raises(plots.RefusedError) as refused:
        plots.draw(kind, path, path.with_suffix(".svg"))
    return str(refused.value)


def test_names_are_those_of_the_program():
    if not contest.PROGRAM.is_file():
        pytest.skip("[SKIP] build/bin/armillary is not built: ./dev build")
    listed = contest.output([str(contest.PROGRAM), "plan", "--list"]).decode()
    assert tuple(re.findall(r"^([a-z0-9_]+)", listed, re.MULTILINE)) == plots.NAMES


def test_ranges_are_drawn(tmp_path):
    if not contest.PROGRAM.is_file():
        pytest.skip("[SKIP] build/bin/armillary is not built: ./dev build")
    flags = shlex.split("--cluster c6 --head-dim 128 --pass forward --strategies ring ulysses --world 2..8")
    path = tmp_path / "a.csv"
    contest.output([str(contest.PROGRAM), "simulate", *flags, "--csv", str(path)])
    words = chart("speedup", path)
    assert {"ring", "ulysses", "times as fast as ring", "2", "4", "8"} <= set(words)
    assert any(word.startswith("c6, causal, contiguous, 4096 tokens, 8 heads") for word in words)


def test_lines_have_the_values_of_their_rows():
    points = {(2,): {"ring": row("ring", 2), "usp": row("usp:u=2", 1)}, (4,): {"ring": row("ring", 3)}}
    lines = plots.lines(points, lambda one, best: best["ring"]["total_s"] / one["total_s"])
    assert lines == {"ring": {2: 1, 4: 1}, "usp": {2: 2}}


def test_a_plan_is_drawn_under_one_name(tmp_path):
    same = [row(name, 1.0) for name in ("usp:u=1", "ring", "auto:traffic")]
    words = chart("scaling", table(tmp_path / "a.csv", *same, row("ulysses", 2.0)))
    assert {"ring", "ulysses"} <= set(words)
    assert not {"usp", "auto"} & set(words)


def test_auto_is_left_out_where_any_other_row_has_its_plan():
    rows = [
        {**POINT, **row(strategy, total_s), "fits": "1"}
        for strategy, total_s in (("grid:u=1", 1.0), ("grid:u=2", 2.0), ("auto:traffic", 2.0))
    ]
    (best,) = plots.best_rows(rows).values()
    assert list(best) == ["grid"]


def test_a_cell_has_the_fastest_that_fits_with_its_keys_and_the_next():
    rows = [
        {**POINT, **row("grid:u=1", 0.5), "fits": "0"},
        {**POINT, **row("usp:u=2,inner=ring", 1.0), "fits": "1"},
        {**POINT, **row("usp:u=1", 1.5), "fits": "1"},
        {**POINT, **row("ring", 1.25), "fits": "1"},
    ]
    (best,) = plots.best_rows(rows).values()
    assert plots.cell_of(best) == (plots.NAMES.index("usp"), "usp\nu=2, inner=ring\nthen ring +25 %")
    assert plots.cell_of({})[1] == "nothing fits\nin memory"


def test_weak_scaling_says_its_tokens(tmp_path):
    rows = [row("ring", 1.0, world=world, seq=4096 * world) for world in (1, 2, 4)]
    words = chart("scaling", table(tmp_path / "a.csv", *rows))
    assert {"Weak scaling of one attention layer", "4K tokens", "16K tokens"} <= set(words)
    # A map with the lengths as its axis would have one diagonal alone: the tokens of a rank are the axis.
    heads = [{**one, "heads": heads} for one in rows for heads in (4, 8)]
    assert {"ranks", "query heads", "1", "2"} <= set(chart("winners", table(tmp_path / "b.csv", *heads)))


def test_the_same_table_gives_the_same_file(tmp_path):
    path = table(tmp_path / "a.csv", row("ring", 1.0), row("ring", 1.5, world=4))
    chart("speedup", path)
    first = path.with_suffix(".svg").read_bytes()
    chart("speedup", path)
    assert path.with_suffix(".svg").read_bytes() == first


def test_refusals(tmp_path):
    pytest.importorskip("matplotlib", reason="[SKIP] no matplotlib (./dev setup test)")
    path = tmp_path / "a.csv"
    assert refusal("speedup", path).startswith("cannot read the table ([Errno 2]")
    path.write_text("world,seq\n1,2\n")
    assert f"'{path}' has no column heads; a table of" in refusal("speedup", path)
    table(path, row("ring", 1.0, heads="x"))
    assert f"line 2 of '{path}': could not convert" in refusal("speedup", path)
    table(path, row("ring", 1.0, fits=0))
    assert f"no row of '{path}' fits in memory" in refusal("scaling", path)
    table(path, row("usp:u=2", 1.0))
    assert refusal("speedup", path).startswith("no row of ring that fits with 2 ranks and 4096 tokens")
    table(path, row("ring", 1.0), row("ring", 1.0, bandwidth=2))
    assert refusal("scaling", path).startswith("2 values of bandwidth in the table; the chart scaling has")
    assert refusal("winners", path).startswith("bandwidth with several values in the table; the chart")
    table(path, *(row("ring", 1.0, world=w, heads=h, seq=s) for w in (2, 4) for h in (1, 2) for s in (8, 9)))
    assert refusal("winners", path).startswith("world, seq, heads with several values")


def test_without_matplotlib_one_line_says_so(tmp_path):
    path = table(tmp_path / "a.csv", row("ring", 1.0))
    find = f"import sys; sys.modules['matplotlib'] = None; sys.path.insert(0, {str(contest.BENCH.parent)!r})"
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{find}; from bench import plots; plots.main()",
            "speedup",
            path,
            tmp_path / "a.svg",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "plots: matplotlib is not installed; it is required: ./dev setup bench\n"
