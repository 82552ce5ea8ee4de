"""Plans as values: made, printed, proved and compared without ranks, tensors or a network."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from typing_extensions import Unpack

from armillary import _native
from armillary._texts import count_of
from armillary.masks import Mask, as_mask

PassName = Literal["forward", "backward", "replay"]
_MIB = 1 << 20


class ProblemFields(TypedDict, total=False):
    """A problem apart from its strategy. Defaults are those of `armillary plan`.

    world (4), seq (4096), kv_seq (as seq), batch (1), heads (8), kv_heads (as heads), head_dim (64),
    value_dim (as head_dim), dtype ("bf16"; "fp64", "fp32", "fp16"), mask ("causal"), layout ("contiguous";
    "zigzag", "striped[:W]", "balanced"), wire ("accumulator"; "input")."""

    world: int
    seq: int
    kv_seq: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: str
    mask: str | Mask
    layout: str
    wire: str


def _native_problem(fields: ProblemFields) -> dict[str, int | str]:
    unknown = set(fields) - set(ProblemFields.__annotations__)
    if unknown:
        known = ", ".join(ProblemFields.__annotations__)
        raise TypeError(f"plan: {sorted(unknown)[0]} is not known; some of {known} are required")
    seq = fields.get("seq", 4096)
    heads = fields.get("heads", 8)
    head_dim = fields.get("head_dim", 64)
    return {
        "world": fields.get("world", 4),
        "q_len": seq,
        "kv_len": fields.get("kv_seq", seq),
        "batch": fields.get("batch", 1),
        "heads": heads,
        "kv_heads": fields.get("kv_heads", heads),
        "head_dim": head_dim,
        "value_dim": fields.get("value_dim", head_dim),
        "dtype": fields.get("dtype", "bf16"),
        "mask": as_mask(fields.get("mask", "causal")).text_at(seq),
        "layout": fields.get("layout", "contiguous"),
        "wire": fields.get("wire", "accumulator"),
    }


@dataclass(frozen=True)
class Diagnostic:
    """One broken rule of a plan and its place; rank or op -1: the plan as a whole."""

    rank: int
    op: int
    rule: str
    text: str


@dataclass(frozen=True)
class RankCost:
    """Costs of one rank in one pass, in bytes; pairs are (batch entry, query head, query, key)."""

    sent_bytes: int
    received_bytes: int
    slot_bytes: int
    visible_pairs: int
    steps: int


class Plan:
    """The programs of all ranks for one pass. `print(plan)` shows the grid, a notebook a table."""

    def __init__(self, native: _native.Plan) -> None:
        self._native = native

    @property
    def strategy(self) -> str:
        """Name and keys, as they are written."""
        return self._native.strategy

    @property
    def pass_name(self) -> str:
        """forward, backward or replay."""
        return self._native.pass_name

    @property
    def costs(self) -> list[RankCost]:
        """Costs by rank, counted in the programs."""
        return [RankCost(*one) for one in self._native.traffic()]

    def to_json(self) -> str:
        """One line, in the format of docs/plan_format.md."""
        return self._native.to_json()

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads what `to_json` or `armillary plan --json` writes. Raises `InvalidArgument` naming the
        place."""
        return Plan(_native.parse_plan(text))

    def verify(self, limit: int = 20) -> list[Diagnostic]:
        """The broken rules, first causes first; none: the plan is exact attention."""
        return [Diagnostic(*one) for one in self._native.verify(limit)]

    def __str__(self) -> str:
        return self._native.to_text()

    def __repr__(self) -> str:
        ranks, ops = len(self.costs), self._native.ops()
        size = f"{count_of(ranks, 'rank')}, {count_of(ops, 'op')}"
        return f"<armillary.Plan {self.strategy} {self.pass_name}: {size}>"

    def _repr_html_(self) -> str:
        most = max(self.costs, key=lambda cost: cost.sent_bytes)
        sent_mib = most.sent_bytes / _MIB
        ranks, steps = count_of(len(self.costs), "rank"), count_of(most.steps, "step")
        summary = f"{ranks}, {steps}, {sent_mib:.2f} MiB sent by the busiest"
        return (
            f"<b>{html.escape(self.strategy)} {self.pass_name}</b>: {summary}"
            f"<pre style='line-height:1.3;overflow-x:auto'>{html.escape(str(self))}</pre>"
        )


def plan(
    strategy: str = "ring",
    *,
    pass_name: PassName = "forward",
    lower: str = "all",
    **problem: Unpack[ProblemFields],
) -> Plan:
    """The plan of a strategy for a problem (`ProblemFields`).

        print(armillary.plan("ring", world=4, seq=64, mask="causal", layout="zigzag"))

    `lower` is "all", "none" or some of fuse, alias, coalesce, zero_copy with commas between. Raises
    `InvalidArgument` if the strategy cannot solve the problem, with the nearest legal choice."""
    return Plan(_native.make_plans(_native_problem(problem), strategy, [pass_name], lower)[0])


@dataclass(frozen=True)
class Proof:
    """The verdict about the passes of a strategy; true if they are exact attention."""

    strategy: str
    world: int
    diagnostics: list[Diagnostic]

    def __bool__(self) -> bool:
        return not self.diagnostics

    def __str__(self) -> str:
        if self:
            ranks = count_of(self.world, "rank")
            return f"{self.strategy}: exact on {ranks}; no deadlock, no hazard, every pair once"
        return "\n".join(f"rank {d.rank} op {d.op}: {d.rule}: {d.text}" for d in self.diagnostics)


def verify(strategy: str = "ring", *, lower: str = "all", **problem: Unpack[ProblemFields]) -> Proof:
    """Proves forward, backward and replay, and that the last two find the tiles that forward saves."""
    fields = _native_problem(problem)
    passes = ["forward", "backward", "replay"]
    forward, *later = _native.make_plans(fields, strategy, passes, lower)
    problems = [one for plan in (forward, *later) for one in plan.verify(20)]
    if not problems:
        problems = [one for plan in later for one in forward.verify_saved(plan, 20)]
    return Proof(forward.strategy, int(fields["world"]), [Diagnostic(*one) for one in problems])


@dataclass(frozen=True)
class ComparedStrategy:
    """A row of `compare`: the busiest rank of each pass."""

    strategy: str
    forward: RankCost
    backward: RankCost
    work_max_over_mean: float


class Comparison(Sequence[ComparedStrategy]):
    """The strategies that solve a problem, in the order of the registry; prints itself as a table."""

    _HEAD = (
        "strategy",
        "work max/mean",
        "steps",
        "sent MiB",
        "slots MiB",
        "backward: steps",
        "sent MiB",
        "slots MiB",
    )

    def __init__(self, rows: list[ComparedStrategy]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._rows[index]

    def __iter__(self) -> Iterator[ComparedStrategy]:
        return iter(self._rows)

    def _cells(self) -> Iterator[tuple[str, ...]]:
        for row in self._rows:
            costs: list[str] = []
            for cost in (row.forward, row.backward):
                costs += [str(cost.steps), f"{cost.sent_bytes / _MIB:.2f}", f"{cost.slot_bytes / _MIB:.2f}"]
            yield (row.strategy, f"{row.work_max_over_mean:.2f}", *costs)

    def __str__(self) -> str:
        lines = [self._HEAD, tuple("---" for _ in self._HEAD), *self._cells()]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def _repr_html_(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        rows = "".join(line(cells, "td") for cells in self._cells())
        return f"<table>{line(self._HEAD, 'th')}{rows}</table>"


def _busiest(costs: list[RankCost]) -> RankCost:
    return RankCost(*(max(getattr(cost, name) for cost in costs) for name in RankCost.__annotations__))


def compare(**problem: Unpack[ProblemFields]) -> Comparison:
    """Costs of every strategy that solves the problem, with the usual values of its keys."""
    fields = _native_problem(problem)
    rows = []
    for strategy in _native.legal_strategies(fields):
        forward, backward = map(Plan, _native.make_plans(fields, strategy, ["forward", "backward"], "all"))
        pairs = [cost.visible_pairs for cost in forward.costs]
        work = max(pairs) * len(pairs) / sum(pairs) if any(pairs) else 1.0
        rows.append(ComparedStrategy(strategy, _busiest(forward.costs), _busiest(backward.costs), work))
    return Comparison(rows)


@dataclass(frozen=True)
class StrategyInfo:
    """A strategy in words."""

    name: str
    usage: str
    summary: str
    paper: str


def strategies() -> list[StrategyInfo]:
    """All strategies by name, with their keys and papers."""
    return [StrategyInfo(*one) for one in _native.strategies()]
