"""Checks of the versions of other packages. That of torch comes before the compiled module is loaded: a
module of another torch would end the process."""

import re
from importlib import metadata

import torch

from armillary._build import TORCH_VERSION
from armillary.errors import BuildError


def check_torch() -> None:
    """Raises `BuildError` unless the torch that is imported is the one of the build."""
    if torch.__version__ == TORCH_VERSION:
        return
    raise BuildError(
        f"armillary was compiled against torch {TORCH_VERSION}, and torch {torch.__version__} is imported; "
        "build it again against this torch"
    )


def check_transformers(least: tuple[int, int]) -> None:
    """Raises `BuildError` unless the transformers that is installed has this version or a newer one."""
    installed = metadata.version("transformers")
    if tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) >= least:
        return
    raise BuildError(
        f"armillary.hf: transformers {installed} is installed; {least[0]}.{least[1]} or newer is required: "
        "pip install 'armillary[transformers]'"
    )
