"""The exceptions of the package, told apart by who must act.

The text of each is one line: ``where: what was given; what is required[; nearest legal choice]``. In a group
of ranks, every rank gets an exception: the rank that was given a wrong value its own, or all ranks the same
one if the ranks disagree; other ranks get `CommError` with the name of that rank and its reason. The next
call of attention joins the ranks again, so a refused call leaves the process group usable."""


class Error(RuntimeError):
    """Base of all exceptions of this package."""


class InvalidArgument(Error, ValueError):  # noqa: N818, the name of the C++ library
    """A value that cannot be used: the caller's to change."""

    is_told = False  # Whether the other ranks have heard of it.


class PlanError(Error):
    """A plan that is not exact attention: the author of a strategy must act. It never runs."""


class CommError(Error):
    """The group has failed: a peer ended, refused its call, or missed a deadline."""


class IoError(Error, OSError):
    """A file or folder that cannot be read or written."""


class InternalError(Error):
    """A broken invariant of this package, whatever the caller did."""


class BuildError(Error, ImportError):
    """The module was compiled against another torch than the one that is imported, or a
    package is too old."""
