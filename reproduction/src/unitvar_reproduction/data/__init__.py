"""Data sets: what and where they are, downloading, formats, images and text in memory."""

from unitvar_reproduction.data.images import (
    LOADERS,
    Images,
    check,
    cifar10,
    cifar100,
    digits,
    mnist,
    standardised,
    svhn,
)
from unitvar_reproduction.data.text import Text, tinyshakespeare

__all__ = [
    "LOADERS",
    "Images",
    "Text",
    "check",
    "cifar10",
    "cifar100",
    "digits",
    "mnist",
    "standardised",
    "svhn",
    "tinyshakespeare",
]
