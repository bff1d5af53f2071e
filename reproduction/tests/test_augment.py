"""Augmentation: exact shifts and mirrors, all of them, equally often."""

import torch
from scipy.stats import chisquare

from unitvar_reproduction.data.augment import draw_moves, moved


def shifted(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """Move a single image [C, H, W] by copying the part that stays inside."""
    out = torch.zeros_like(image)
    height, width = image.shape[1:]
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                out[:, y, x] = image[:, y - down, x - right]
    return out


def test_every_image_is_mirrored_then_moved_by_its_own_move() -> None:
    images = torch.randn(40, 3, 6, 5)
    moves = draw_moves(40, 3, torch.Generator().manual_seed(0))
    found = moved(images, moves, 3)
    for image, (down, right, mirror), got in zip(images, moves.tolist(), found, strict=True):
        expected = shifted(image.flip(2) if mirror else image, down, right)
        assert torch.equal(got, expected)


def test_all_moves_are_equally_likely() -> None:
    moves = draw_moves(40_000, 4, torch.Generator().manual_seed(0))
    assert moves.shape == (40_000, 3)
    for column, values in zip(moves.unbind(1), (range(-4, 5), range(-4, 5), range(2)), strict=True):
        counts = [int((column == value).sum()) for value in values]
        assert sum(counts) == 40_000
        assert chisquare(counts).pvalue > 1e-4
    pairs = (moves[:, 0] + 4) * 18 + (moves[:, 1] + 4) * 2 + moves[:, 2]
    assert chisquare(pairs.bincount(minlength=162).numpy()).pvalue > 1e-4  # independent, too
