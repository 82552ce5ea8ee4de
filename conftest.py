"""Files of tests that take long begin first: none is left at the end, when other cores have nothing to do."""

import pathlib

ROOT = pathlib.Path(__file__).parent
LONG = [
    ROOT / name
    for name in (
        "python/tests/trainer_test.py",
        "tests/pictures/digits_test.py",
        "tests/install/install_test.py",
        "tests/benchmarks/bench_test.py",
        "tests/tokenizers/parity_test.py",
        "python/tests/wheel_test.py",
        "python/tests/hf_families_test.py",
        "python/tests/context_parallel_test.py",
        "python/tests/ops_test.py",
        "python/tests/examples_test.py",
    )
]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path) if item.path in LONG else len(LONG))
