"""Models whose parameters FSDP2 has spread over ranks."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from torch import nn

from unitvar._torch import fsdp_lazy_init, fsdp_parameter_groups
from unitvar.running.undo import Undo, undoing


@undoing()
def gathered(undo: Undo, model: nn.Module) -> None:
    """Gather all FSDP2 parameters before a block, and shard them again after it.

    Forward passes inside then need no collective, so ranks may run different numbers of them, stop half-way, or fail.

    Args:
        undo: comes from the decorator.
        model: any model; nothing happens to one that ``fully_shard`` has not been applied to.

    Returns:
        A context manager.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    shards: list[Any] = [m for m in model.modules() if fsdp and isinstance(m, fsdp.FSDPModule)]
    inside = {m for shard in shards for m in shard.modules() if m is not shard}
    roots = [shard for shard in shards if shard not in inside]
    for root in roots:
        # Otherwise the first forward pass does it, and would decide there whether the root is sharded again.
        fsdp_lazy_init(root)
    for root in roots:
        undo.add(root.reset_iter_state)  # also after a forward pass that did not end
    groups = [group for shard in shards for group in fsdp_parameter_groups(shard)]
    for group in groups:
        undo.add(partial(setattr, group, "post_forward_mesh_info", group.post_forward_mesh_info))
    for shard in shards:
        shard.unshard()
    for group in groups:
        group.post_forward_mesh_info = None  # what set_reshard_after_forward(False) does; there is no public getter
