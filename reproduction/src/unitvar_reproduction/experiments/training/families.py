"""The families of networks that the study trains: small, each with its usual dropout and its usual initialisation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from unitvar_reproduction import networks
from unitvar_reproduction.data.tasks import LENGTH
from unitvar_reproduction.networks.attention import GPT, Encoder, Mixer, ViT
from unitvar_reproduction.networks.convolution import ConvNeXt, ResNet, UNet, plain_cnn
from unitvar_reproduction.networks.recurrent import CharacterRNN, autoencoder

__all__ = ["CLAIMING", "FAMILIES", "Family", "mlp_name", "ours"]

CHARACTERS = 65  # of tiny Shakespeare


@dataclass(frozen=True)
class Family:
    """A kind of network, and how it is trained."""

    title: str
    make: Callable[[], nn.Module]
    task: str
    usual: str
    """Its usual initialisation, by name."""

    batch: int = 32
    clip: float | None = None
    residual: bool = False
    """Whether ``residual=`` changes its weights; not where branches end in BatchNorm or in a small scale."""

    post_norm: bool = False
    """Whether a norm follows each sum of its residual stream."""

    embeds: bool = False

    @property
    def name(self) -> str:
        """What a sentence calls it: its title without sizes and dropout; those tell MLPs apart."""
        return (
            self.title
            if self.title.startswith("MLP,")
            else re.split(r", (?=\d|dropout|drop path|input)", self.title)[0]
        )


def mlp_name(activation: str, depth: int, dropout: float) -> str:
    """Return what an MLP is called in the table."""
    return f"mlp-{activation}-{depth}-{dropout:g}"


def _mlp(activation: str, depth: int, dropout: float) -> Family:
    make = partial(networks.mlp, 784, dropout, activation=activation, batchnorm=False, width=128, hidden=depth - 1)
    title = f"MLP, {depth} layers, {activation}, dropout {dropout:g}"
    return Family(title, make, "digits", "xavier" if activation == "tanh" else "he", batch=64)


_WRITING = partial(Family, task="next character", clip=1.0, embeds=True)

CLAIMING: dict[str, Family] = {
    "lstm": _WRITING(
        "LSTM, 2 layers, dropout 0.2",
        partial(CharacterRNN, CHARACTERS, 64, "lstm", 0.2),
        usual="keras",
        batch=16,
    ),
    "autoencoder": Family(
        "Denoising autoencoder, input dropout 0.2",
        partial(autoencoder, 196, (256, 128, 64, 16), 0.2),
        "reconstruction",
        "he",
        batch=64,
    ),
    "post-ln": _WRITING(
        "Post-LN encoder, 6 blocks, dropout 0.1",
        partial(Encoder, CHARACTERS, LENGTH, 48, 6, 0.1),
        usual="xavier-all",
        batch=8,
        residual=True,
        post_norm=True,
    ),
    "mixer": Family(
        "MLP-Mixer, 6 blocks, dropout 0.1", partial(Mixer, 16, 48, 6, 0.1), "classes", "xavier", clip=1.0, residual=True
    ),
    "unet": Family("U-Net, dropout 0.3 at the bottom", partial(UNet, 8, 0.3), "segments", "he"),
    "gpt": _WRITING(
        "GPT, 4 blocks, dropout 0.1",
        partial(GPT, CHARACTERS, LENGTH, 48, 4, 0.1, tied=False),
        usual="gpt2",
        batch=8,
        residual=True,
    ),
    "cnn-relu": Family("Plain CNN, ReLU, dropout 0.2", partial(plain_cnn, 16, "relu", 0.2), "classes", "torchvision"),
    "gpt-tied": _WRITING(
        "GPT with a tied head",
        partial(GPT, CHARACTERS, LENGTH, 48, 4, 0.1, tied=True),
        usual="gpt2",
        batch=8,
        residual=True,
    ),
    "vit": Family(
        "ViT, 6 blocks, dropout 0.1", partial(ViT, 16, 48, 6, 0.1), "classes", "trunc-normal", clip=1.0, residual=True
    ),
    "cnn-gelu": Family("Plain CNN, GELU, dropout 0.2", partial(plain_cnn, 16, "gelu", 0.2), "classes", "torchvision"),
    "gru": _WRITING(
        "GRU, 2 layers, dropout 0.2",
        partial(CharacterRNN, CHARACTERS, 64, "gru", 0.2),
        usual="keras",
        batch=16,
    ),
    "resnet": Family("ResNet with BatchNorm, dropout 0.1", partial(ResNet, 16, 1, 0.1), "classes", "torchvision"),
    "convnext": Family("ConvNeXt, drop path 0.1", partial(ConvNeXt, 24, (2, 2), 0.1), "classes", "trunc-normal"),
}
"""Families of their own, in the order of what a run should know first."""

MLPS = {
    mlp_name(*kind): _mlp(*kind)
    for kind in (
        ("relu", 12, 0.4),
        ("relu", 4, 0.5),
        ("relu", 8, 0.3),
        ("relu", 16, 0.1),
        ("relu", 8, 0.5),
        ("relu", 4, 0.1),
        ("relu", 8, 0.1),
        ("relu", 16, 0.3),
        ("gelu", 8, 0.3),
        ("tanh", 8, 0.3),
        ("gelu", 16, 0.1),
        ("tanh", 16, 0.1),
        ("gelu", 4, 0.5),
        ("tanh", 12, 0.4),
    )
}
"""Dense networks without norms, for how the best gain depends on depth, dropout and activation."""

FAMILIES = CLAIMING | MLPS


def ours(family: str) -> str:
    """Return the name of what ``initialize_`` does to a family without options: ``residual="auto"``."""
    return "damped" if FAMILIES[family].post_norm else "scaled"
