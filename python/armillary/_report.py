"""The report of `check`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from armillary._texts import excerpt
from armillary.errors import InvalidArgument


@dataclass(frozen=True)
class Row:
    """One comparison: a value, and the bound that it must not exceed."""

    name: str
    value: float
    bound: float
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the value is within its bound; a value that is not a number is not."""
        return self.value <= self.bound


@dataclass(frozen=True)
class Report:
    """Result of `check`, the same on every rank. True if all rows are within their bounds.

    With a `world` of 1 nothing was spread: the rows compare attention on one rank, and the text says so."""

    title: str
    rows: tuple[Row, ...]
    world: int

    @property
    def ok(self) -> bool:
        """Whether all values are within their bounds."""
        return all(row.ok for row in self.rows)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        names = max(len(row.name) for row in self.rows)
        lines = [
            f"{'ok  ' if row.ok else 'FAIL'}  {row.name:<{names}}  {row.value:9.2e} <= {row.bound:9.2e}  "
            f"{row.note}"
            for row in self.rows
        ]
        verdict = "equal to one device" if self.ok else "NOT equal to one device"
        if self.world == 1:
            verdict = (
                f"{'ok' if self.ok else 'FAIL'} on one rank, where nothing is spread: over ranks nothing was "
                "checked; torchrun --nproc-per-node 2 or more is required"
            )
        return "\n".join([self.title, *(line.rstrip() for line in lines), verdict])

    def to_json(self) -> str:
        """The report as JSON."""
        rows = [asdict(row) | {"ok": row.ok} for row in self.rows]
        return json.dumps({"title": self.title, "ok": self.ok, "world": self.world, "rows": rows}, indent=2)

    def save(self, path: str | Path) -> None:
        """Writes the report as JSON if the path ends so, as text otherwise. Missing folders are made.

        Raises `InvalidArgument` for a file that cannot be written, and for a pipe, which would wait for its
        reader, but for /dev/stdout and its like."""
        refuse_pipe(path)
        text = self.to_json() if str(path).endswith(".json") else str(self)
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text + "\n")
        except OSError as failure:
            raise InvalidArgument(
                f"check: cannot write {excerpt(str(path))} ({failure.strerror}); a file for the report is "
                "required"
            ) from failure


def refuse_pipe(path: str | Path) -> None:
    """Raises `InvalidArgument` for a pipe by name."""
    if Path(path).is_fifo() and not str(path).startswith(("/dev/", "/proc/")):
        raise InvalidArgument(f"check: {excerpt(str(path))} is a pipe; a file for the report is required")
