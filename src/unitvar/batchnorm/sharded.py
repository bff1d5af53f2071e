"""Models whose parameters FSDP2 has spread over ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from unitvar._torch import fsdp_lazy_init, fsdp_parameter_groups


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Gather all FSDP2 parameters before a block, and shard them again after it.

    Forward passes inside then need no collective, so ranks may run different numbers of them, stop half-way, or fail.

    Args:
        model: any model; nothing happens to one that ``fully_shard`` has not been applied to.

    Returns:
        A context manager.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    shards: list[Any] = [m for m in model.modules() if fsdp and isinstance(m, fsdp.FSDPModule)]
    if not shards:
        yield
        return
    inside = {m for shard in shards for m in shard.modules() if m is not shard}
    roots = [shard for shard in shards if shard not in inside]
    groups = []
    for root in roots:
        # Otherwise the first forward pass does it, and would decide there whether the root is sharded again.
        fsdp_lazy_init(root)
    for shard in shards:
        groups += [(group, group.post_forward_mesh_info) for group in fsdp_parameter_groups(shard)]
    try:
        for shard in shards:
            shard.unshard()
        for group, _ in groups:
            group.post_forward_mesh_info = None  # what set_reshard_after_forward(False) does; there is no public getter
        yield
    finally:
        for group, info in groups:
            group.post_forward_mesh_info = info
        for root in roots:
            root.reset_iter_state()  # also after a forward pass that did not end
