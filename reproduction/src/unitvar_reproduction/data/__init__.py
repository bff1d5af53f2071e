"""Data sets: what and where they are, downloading, formats, images in memory."""

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

__all__ = ["LOADERS", "Images", "check", "cifar10", "cifar100", "digits", "mnist", "standardised", "svhn"]
