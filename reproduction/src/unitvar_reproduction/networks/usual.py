"""The initialisations that people use for any network: He's, Xavier's, and each family's own.

Each fills a model in place from torch's global generator. Weights that hold several matrices (packed queries, keys and
values; the gates of a recurrent layer) are filled one matrix at a time, unless the original does otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

__all__ = ["USUAL", "matrices", "recurrent_", "zero_biases_"]

Fill = Callable[[nn.Module], object]
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def matrices(model: nn.Module) -> Iterator[tuple[nn.Module, Tensor]]:
    """Give each module that has weights with each of its matrices, as a view; embeddings are not among them."""
    for module in model.modules():
        if isinstance(module, WEIGHTED):
            yield module, module.weight.data
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            yield from ((module, part) for part in module.in_proj_weight.data.chunk(3))
        elif isinstance(module, nn.RNNBase):
            for name, weight in module.named_parameters():
                if name.startswith("weight"):
                    yield from ((module, part) for part in weight.data.chunk(GATES[module.mode]))


@torch.no_grad()
def zero_biases_(model: nn.Module) -> nn.Module:
    """Set the biases of layers with weights to zero, and leave those of norms alone; return the model."""
    for module in model.modules():
        if isinstance(module, (*WEIGHTED, nn.MultiheadAttention, nn.RNNBase)):
            for name, parameter in module.named_parameters(recurse=False):
                if "bias" in name:
                    parameter.zero_()
    return model


def _each(fill: Callable[[Tensor], object]) -> Fill:
    """Fill every matrix the same way, and zero the biases."""

    def filled(model: nn.Module) -> None:
        for _, matrix in matrices(model):
            fill(matrix)
        zero_biases_(model)

    return filled


def _he(matrix: Tensor) -> object:
    return nn.init.kaiming_normal_(matrix, nonlinearity="relu")


def _every_parameter(model: nn.Module) -> None:
    """Fill as the tutorials of torch's transformer do: Xavier for every parameter with two dimensions or more."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    zero_biases_(model)


@torch.no_grad()
def _gpt2(model: nn.Module) -> None:
    """Fill as Radford et al.: N(0, 0.02²), embeddings too, and less by the root of their number at branch ends."""
    ends = [m for name, m in model.named_modules() if name.rpartition(".")[2] == "end"]
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            scale = math.sqrt(len(ends)) if module in ends else 1.0
            nn.init.normal_(module.weight, 0.0, 0.02 / scale)
    zero_biases_(model)


def _torchvision(model: nn.Module) -> None:
    """Fill as torchvision's VGG and ResNet: He's by the fan-out of convolutions, N(0, 0.01²) for dense layers."""
    for module, matrix in matrices(model):
        if isinstance(module, nn.Linear):
            nn.init.normal_(matrix, 0.0, 0.01)
        else:
            nn.init.kaiming_normal_(matrix, mode="fan_out", nonlinearity="relu")
    zero_biases_(model)


@torch.no_grad()
def recurrent_(model: nn.Module) -> None:
    """Fill as Keras does: Xavier, but orthogonal matrices for what is recurrent, and one for an LSTM's forget gate."""
    _each(nn.init.xavier_uniform_)(model)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            for name, weight in module.named_parameters():
                if name.startswith("weight_hh"):
                    for part in weight.data.chunk(GATES[module.mode]):
                        nn.init.orthogonal_(part)
                elif name.startswith("bias_ih") and module.mode == "LSTM":
                    weight.data.chunk(4)[1].fill_(1.0)  # torch's order: input, forget, cell, output


USUAL: dict[str, Fill] = {
    "default": lambda model: None,
    "he": _each(_he),
    "xavier": _each(nn.init.xavier_uniform_),
    "xavier-all": _every_parameter,
    "gpt2": _gpt2,
    "trunc-normal": _each(lambda matrix: nn.init.trunc_normal_(matrix, std=0.02)),
    "torchvision": _torchvision,
    "keras": recurrent_,
}
"""Name → what it does to a model fresh from its constructor; ``default`` leaves what torch drew."""
