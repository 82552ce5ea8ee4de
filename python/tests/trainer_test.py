"""The Trainer over ranks trains as one device does."""

import importlib.util
import json

import pytest

if any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate")):
    pytest.skip("transformers or accelerate is not installed", allow_module_level=True)

import launched
from armillary.hf_trainer import ShardingCollator

import armillary


def test_trains_as_one_device(tmp_path):
    lines = launched.torchrun(2, "trainer_ranks.py", str(tmp_path)).splitlines()
    found = json.loads(next(line for line in lines if line.startswith('{"parameters"')))
    assert found["parameters"] <= 1e-5, found
    assert len(found["losses"]) == 4
    for given, wanted in found["losses"]:
        # Logs of the Trainer are rounded to four digits behind the point.
        assert abs(given - wanted) <= 1e-4, found


def test_padding_is_refused():
    collate = ShardingCollator(armillary.SequenceParallel())
    with pytest.raises(armillary.InvalidArgument, match="examples have attention_mask"):
        collate([{"input_ids": [1, 2], "attention_mask": [1, 1]}])
    with pytest.raises(armillary.InvalidArgument, match="input_ids of 2 to 3 tokens"):
        collate([{"input_ids": [1, 2]}, {"input_ids": [1, 2, 3]}])
