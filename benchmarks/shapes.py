"""The shapes of every weight of two familiar networks."""

from __future__ import annotations


def resnet50() -> list[tuple[int, ...]]:
    """He et al. (2016): 53 convolutions and the classifier, 25.5 million weights."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                shapes.append((4 * width, channels, 1, 1))
            channels = 4 * width
    return [*shapes, (1000, channels)]


def vit_b() -> list[tuple[int, ...]]:
    """Dosovitskiy et al. (2021), ViT-B/16: 86.3 million weights."""
    block: list[tuple[int, ...]] = [(2304, 768), (768, 768), (3072, 768), (768, 3072)]
    return [(768, 3, 16, 16), *(12 * block), (1000, 768)]
