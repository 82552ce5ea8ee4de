"""A rank that begins later than the others have stayed behind their refusal still says its own line."""

import os
import re

import pytest
import runs

ALL = [name for name in runs.ENGINES if not runs.why_not(name)]
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(bool(runs.why_not("c10d")), reason=f"[SKIP] {runs.why_not('c10d')}"),
]


@pytest.mark.parametrize("engine", ALL if os.environ.get("ARMILLARY_TEST_ALL") else ALL[:1])
def test_a_rank_that_begins_late_refuses_too(tmp_path, engine):
    words = [*runs.train(tmp_path, 3, 20), "--set", "training.step=3"]
    with runs.Run(tmp_path, engine, 3, preload="start_late.c", words=words) as run:
        ending = run.end()
    assert ending.left == [], ending.output
    assert ending.code == 2, ending.output
    told = re.findall(r"\[rank (\d)\] armillary: .*nearest: steps", ending.output)
    assert sorted(told) == ["0", "1", "2"], ending.output
