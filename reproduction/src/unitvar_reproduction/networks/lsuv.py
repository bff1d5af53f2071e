"""LSUV: orthonormal weights, then each layer's output scaled to unit variance on a batch (Mishkin & Matas, 2016)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unitvar import dropout_off
from unitvar_reproduction.networks.usual import WEIGHTED, matrices, zero_biases_

__all__ = ["lsuv_"]


@torch.no_grad()
def lsuv_(model: nn.Module, example: Tensor) -> nn.Module:
    """Fill a model in place by layer-sequential unit variance, with dropout off as in the paper; return it.

    Layers are scaled in the order in which they run, each after those before it. The paper repeats the division by the
    measured deviation until the variance is within 0.1 of one; without a bias a layer's output is proportional to its
    weight, so one division is exact. Recurrent weights, of which the paper says nothing, stay orthonormal. Embeddings
    are left alone; a head that shares its weight with one is orthonormal, and not scaled.

    Args:
        model: any network whose weights belong to torch's own layers.
        example: a batch of its inputs.
    """
    for _, matrix in matrices(model):
        nn.init.orthogonal_(matrix)
    zero_biases_(model)
    shared = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    handles = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            handles += [
                module.register_forward_pre_hook(_packed, with_kwargs=True),
                module.register_forward_hook(_attention),
            ]
        elif isinstance(module, WEIGHTED) and id(module.weight) not in shared:
            handles.append(module.register_forward_hook(_scaled))
    try:
        with dropout_off(model):
            model(example)
    finally:
        for handle in handles:
            handle.remove()
    return model


def _scaled(module: Any, inputs: Any, output: Tensor) -> Tensor:
    deviation = output.std()
    module.weight /= deviation
    return output / deviation


def _packed(module: nn.MultiheadAttention, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
    """Scale queries, keys and values, which attention computes by itself, each by its own deviation."""
    for source, part in zip(inputs, module.in_proj_weight.chunk(3), strict=True):
        part /= F.linear(source, part).std()


def _attention(module: nn.MultiheadAttention, inputs: Any, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    """Scale the last weight of attention, which torch does not call as a module."""
    return _scaled(module.out_proj, inputs, output[0]), output[1]
