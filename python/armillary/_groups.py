"""Process groups: from all that names one to the one that is meant."""

from __future__ import annotations

import os
import weakref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from armillary import _native
from armillary.errors import InvalidArgument

Group = dist.ProcessGroup | DeviceMesh | None


def process_group(group: object, where: str = "SequenceParallel") -> dist.ProcessGroup | None:
    """The process group that is meant; None for a group of one rank.

    Raises `InvalidArgument`, whose text begins with `where`, for anything that is no group, for a mesh of
    several axes, and where this rank is not in it."""
    if isinstance(group, DeviceMesh):
        return _of_mesh(group, where)
    if group is None:
        return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument(f"{where}: this rank is not in the group; a group that holds it is required")
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgument(
            f"{where}: group is a {type(group).__name__}; a ProcessGroup, a DeviceMesh of one axis "
            "or None is required"
        )
    return group


_watched: weakref.WeakSet[dist.ProcessGroup] = weakref.WeakSet()


def leave_at_its_end(group: dist.ProcessGroup) -> None:
    """Leaves a group when its object ends, which nothing here keeps alive."""
    if group in _watched:
        return
    _watched.add(group)
    weakref.finalize(group, _native.leave_group, group.group_name, _native.id_of(group.group_name))


def _inherit_groups() -> None:
    """In a forked child: the groups of its parent are not its own."""
    if dist.is_available():
        groups = dist.distributed_c10d._world.pg_map
        _native.inherit_groups([one.group_name for one in groups])


os.register_at_fork(after_in_child=_inherit_groups)


def _of_mesh(mesh: DeviceMesh, where: str) -> dist.ProcessGroup:
    if mesh.ndim != 1:
        axes = mesh.mesh_dim_names or ()
        one = axes[-1] if axes else "cp"
        raise InvalidArgument(
            f'{where}: a mesh of {mesh.ndim} axes {tuple(axes)}; one axis is required, such as mesh["{one}"]'
        )
    if mesh.get_coordinate() is None:
        raise InvalidArgument(f"{where}: this rank is not in the mesh; a mesh that holds it is required")
    return mesh.get_group()


def gather_over_ranks(mine: Tensor, group_name: str, timeout_s: float) -> Tensor:
    """[world, ..]: the tensors of all ranks. The op's own refusal is marked: all ranks have been told."""
    try:
        all_ranks: Tensor = torch.ops.armillary.gather_over_ranks(mine, group_name, timeout_s)
    except InvalidArgument as refused:
        refused.is_told = True
        raise
    return all_ranks
