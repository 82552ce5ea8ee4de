"""Charts of a table that `armillary simulate` wrote: python3 armillary/lab/bench plots CHART c3.csv c3.svg

    speedup    the time of Ring over that of each strategy, by ranks
    scaling    TFLOP/s of a rank, visible pairs only, by ranks
    winners    the fastest strategy over two ranges

Strategies of one name are one line or cell: at every point, the fastest of them that fits in memory. A plan
that has two names is shown once, under the first of NAMES; `auto` where no other strategy has its plan. The
suffix of the file chooses its format. Drawn by matplotlib."""

import argparse
import csv
import pathlib
import sys

# In the order of the registry. The place of a name is its look in every chart.
NAMES = (
    "ring",
    "allgather",
    "ulysses",
    "usp",
    "double_ring",
    "bidirectional_ring",
    "tokenring",
    "attention2d",
    "startrail",
    "grid",
    "auto",
)
# The second to the seventh follow Okabe and Ito, darker where they would be faint on white.
COLOURS = (
    "#5b6168",
    "#0072b2",
    "#d55e00",
    "#00785a",
    "#b0528a",
    "#2a8fbd",
    "#9a6f00",
    "#5e3c99",
    "#a50026",
    "#1c1e21",
    "#6b6b00",
)
MARKS = "os^Dv+*"
SAME = 1e-6  # Times so close are those of one plan under two names: usp with u = P is ulysses.
FAR_APART = 5
RANGES = ("world", "seq", "heads", "bandwidth")
COLUMNS = (*RANGES, "strategy", "total_s", "fits", "flops_per_rank")


class RefusedError(Exception):
    """A table that a chart cannot show: what was given, and what is required."""


def is_same(a, b):
    return abs(a - b) <= SAME * max(a, b)


def name_of(row):
    return row["strategy"].partition(":")[0]


def look_of(name):
    return NAMES.index(name) if name in NAMES else len(NAMES)


def read_rows(path):
    """The rows of a table, with numbers where the charts need them."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), reader.fieldnames or ()
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(
            f"cannot read the table ({error}); one of `armillary simulate --csv` is required"
        ) from error
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise RefusedError(
            f"'{path}' has no column {missing[0]}; a table of `armillary simulate --csv` is required"
        )
    for line, row in enumerate(rows, 2):
        try:
            row.update({key: float(row[key]) for key in (*RANGES, "total_s", "flops_per_rank")})
        except (TypeError, ValueError) as error:
            raise RefusedError(f"line {line} of '{path}': {error}; numbers are required") from error
    if not any(row["fits"] == "1" for row in rows):
        raise RefusedError(f"no row of '{path}' fits in memory; one that does is required")
    return rows


def best_rows(rows):
    """{point: {name: its fastest row that fits}}, in the order of the rows."""
    points, others = {}, {}
    for row in rows:
        point, name = tuple(row[key] for key in RANGES), name_of(row)
        best = points.setdefault(point, {})
        if name != "auto":
            others.setdefault(point, []).append(row["total_s"])
        if row["fits"] == "1" and (name not in best or row["total_s"] < best[name]["total_s"]):
            best[name] = row
    for point, best in points.items():
        auto = best.get("auto")
        if auto and any(is_same(total_s, auto["total_s"]) for total_s in others.get(point, [])):
            del best["auto"]
    return points


class Axis:
    """A range with several values, and the value of a point on it."""

    def __init__(self, title, column, value, points):
        self.title, self.column, self.value = title, column, value
        self.values = sorted({value(point) for point in points})


def axes_of(points):
    """The ranges that have several values; one is the tokens of a rank if lengths grow with ranks."""
    titles = ("ranks", "tokens", "query heads", "bandwidth of all links, as a factor")
    axes = [
        Axis(title, column, lambda point, i=i: point[i], points)
        for i, (title, column) in enumerate(zip(titles, RANGES, strict=True))
    ]
    of_a_rank = Axis("tokens of a rank", "seq", lambda point: point[1] / point[0], points)
    if len(of_a_rank.values) < len(axes[1].values):
        axes[1] = of_a_rank
    return [axis for axis in axes if len(axis.values) > 1]


def refuse_more_than_ranks(points, chart):
    for axis in axes_of(points):
        if axis.column != "world":
            raise RefusedError(
                f"{len(axis.values)} values of {axis.column} in the table; the chart {chart} has one axis, "
                f"world: one value of {axis.column} is required, or the chart winners, which has two axes"
            )


def short_number(value):
    """65536 as 64K, 1048576 as 1M."""
    for size, letter in ((1024**2, "M"), (4 * 1024, "K")):
        if value >= size:
            return f"{value / (1024 if letter == 'K' else size):.4g}{letter}"
    return f"{value:.4g}"


def conditions(rows):
    """The words below a title: the cluster, and the numbers that do not differ between rows."""
    row = rows[0]

    def constant(column, unit=""):
        if column not in row or len({row[column] for row in rows}) > 1:
            return []
        text = row[column] if isinstance(row[column], str) else f"{row[column]:.10g}"
        return [text + unit]

    passes = [key.removesuffix("_sent_bytes") for key in row if key.endswith("_sent_bytes")]
    words = constant("cluster") + constant("mask") + constant("layout") + constant("seq", " tokens")
    words += constant("heads", " heads") + constant("kv_heads", " KV heads")
    words += constant("head_dim", " dims a head")
    words += [*constant("dtype"), " and ".join(passes)]
    if row["bandwidth"] != 1:
        words += constant("bandwidth", " times the bandwidth of all links")
    return ", ".join(words) + "; simulated"


def lines(points, y):
    """{name: (label, xs, ys)}; a line that lies on an earlier one is left out, as is `auto` with gaps."""
    drawn = {}
    for name in sorted({name for best in points.values() for name in best}, key=look_of):
        pairs = {point[0]: y(best[name], best) for point, best in points.items() if name in best}
        if name == "auto" and len(pairs) < len(points):
            continue
        if any(
            all(x in other and is_same(other[x], value) for x, value in pairs.items())
            for other in drawn.values()
        ):
            continue
        drawn[name] = pairs
    return drawn


def draw_lines(plt, points, chart, y, words):
    """`words`: the title, the name of x and that of y. Returns the figure."""
    figure, axes = plt.subplots(figsize=(8.4, 5), layout="constrained")
    series = lines(points, y)
    for name, pairs in sorted(series.items(), key=lambda item: -list(item[1].values())[-1]):
        look = look_of(name)
        axes.plot(
            list(pairs),
            list(pairs.values()),
            label=name,
            color=COLOURS[look % len(COLOURS)],
            marker=MARKS[look % len(MARKS)],
        )
    values = [value for pairs in series.values() for value in pairs.values()]
    tokens = {point[0]: point[1] for point in points}
    grows = len(set(tokens.values())) > 1
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        list(tokens),
        [f"{world:.0f}" + (f"\n{short_number(tokens[world])} tokens" if grows else "") for world in tokens],
    )
    axes.minorticks_off()
    if chart == "speedup":
        axes.axhline(1, color="#5b6168", linestyle="--", linewidth=1)
    if chart == "speedup" and max(values) / min(values) > FAR_APART:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dfe1e4")
    axes.set_xlabel(words[1])
    axes.set_ylabel(words[2])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)  # in the order of the last points
    return figure, axes


def speedup(plt, rows):
    points = best_rows(rows)
    refuse_more_than_ranks(points, "speedup")
    for point, best in points.items():
        if "ring" not in best:
            raise RefusedError(
                f"no row of ring that fits with {point[0]:.0f} ranks and {point[1]:.0f} tokens; a speed-up "
                "over Ring requires one"
            )
    words = ("Speed-up of one attention layer over Ring", "ranks", "times as fast as ring")
    figure, axes = draw_lines(
        plt, points, "speedup", lambda row, best: best["ring"]["total_s"] / row["total_s"], words
    )
    return figure, axes, words[0]


def scaling(plt, rows):
    points = best_rows(rows)
    refuse_more_than_ranks(points, "scaling")
    weak = len({point[1] for point in points}) > 1
    words = (
        f"{'Weak' if weak else 'Strong'} scaling of one attention layer",
        "ranks, and tokens in proportion" if weak else "ranks, for the same tokens",
        "TFLOP/s of each rank, visible pairs only",
    )
    figure, axes = draw_lines(plt, points, "scaling", lambda row, _: row["flops_per_rank"] / 1e12, words)
    return figure, axes, words[0]


def cell_of(best):
    """The look and the lines of a cell: the fastest strategy, its keys, how much slower the next is."""
    if not best:
        return len(NAMES), "nothing fits\nin memory"
    least_s = min(row["total_s"] for row in best.values())
    names = sorted(best, key=look_of)
    winner = next(name for name in names if is_same(best[name]["total_s"], least_s))
    text = "\n".join([winner, *best[winner]["strategy"].split(":")[1:]]).replace(",", ", ")
    slower = [name for name in names if not is_same(best[name]["total_s"], least_s)]
    if slower:
        second = min(slower, key=lambda name: best[name]["total_s"])
        percent = 100 * (best[second]["total_s"] / least_s - 1)
        text += f"\nthen {second} +{percent:.{1 if percent < 10 else 0}f} %"
    return look_of(winner), text


def winners(plt, rows):
    points = best_rows(rows)
    axes_used = axes_of(points)
    if len(axes_used) != 2:
        several = ", ".join(axis.column for axis in axes_used) or "nothing"
        raise RefusedError(
            f"{several} with several values in the table; the chart winners has two axes: several values of "
            f"two of {', '.join(RANGES)} are required, and one of the others"
        )
    across, down = axes_used
    size = (2 + 1.7 * len(across.values), 1.6 + 0.8 * len(down.values))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    for point, best in points.items():
        look, text = cell_of(best)
        column, row = across.values.index(across.value(point)), down.values.index(down.value(point))
        colour = COLOURS[look % len(COLOURS)]
        axes.add_patch(plt.Rectangle((column - 0.49, row - 0.48), 0.98, 0.96, facecolor=colour))
        axes.text(column, row, text, ha="center", va="center", color="white", fontsize=8)
    for set_ticks, set_label, axis in (
        (axes.set_xticks, axes.set_xlabel, across),
        (axes.set_yticks, axes.set_ylabel, down),
    ):
        set_ticks(range(len(axis.values)), [short_number(value) for value in axis.values])
        set_label(axis.title)
    axes.set(xlim=(-0.5, len(across.values) - 0.5), ylim=(-0.5, len(down.values) - 0.5))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure, axes, "The fastest strategy, and by how much the next is slower"


CHARTS = {"speedup": speedup, "scaling": scaling, "winners": winners}


def draw(chart, table, out):
    """Writes one chart. @raises RefusedError for a table that it cannot show."""
    rows = read_rows(table)
    try:
        import matplotlib
    except ImportError as error:
        raise RefusedError("matplotlib is not installed; it is required: ./dev setup bench") from error
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    # Text stays text, and the same table gives the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "armillary", "font.size": 10})
    figure, axes, title = CHARTS[chart](plt, rows)
    axes.set_title(conditions(rows), loc="left", fontsize=8, color="#5b6168", wrap=True)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main():
    parser = argparse.ArgumentParser(
        prog="python3 armillary/lab/bench plots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("chart", choices=CHARTS)
    parser.add_argument("table", type=pathlib.Path, help="the CSV of `armillary simulate --csv`")
    parser.add_argument("out", type=pathlib.Path, help="FILE.svg, .png or .pdf")
    args = parser.parse_args()
    try:
        draw(args.chart, args.table, args.out)
    except (RefusedError, OSError, ValueError) as refused:
        print(f"plots: {refused}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
