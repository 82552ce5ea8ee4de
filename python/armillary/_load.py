"""The check that comes before the compiled module is loaded: a module of another torch would end the
process."""

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
