"""Images moved a little and mirrored, a batch at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["draw_moves", "moved"]


def draw_moves(count: int, by: int, generator: torch.Generator) -> Tensor:
    """Draw for each image how far to move it down and right, from -by to by, and whether to mirror it: [count, 3]."""
    shifts = torch.randint(-by, by + 1, (count, 2), generator=generator)
    return torch.cat([shifts, torch.randint(2, (count, 1), generator=generator)], dim=1)


def moved(images: Tensor, moves: Tensor, by: int) -> Tensor:
    """Return images [N, C, H, W], first mirrored, then moved; zeros come in at the borders, channels last in memory."""
    count, _, height, width = images.shape
    down, right, mirror = moves.to(images.device).unbind(1)
    padded = F.pad(images, (by, by, by, by)).permute(0, 2, 3, 1)
    rows = torch.arange(height, device=images.device) + (by - down)[:, None]
    columns = torch.arange(width, device=images.device) + (by - right)[:, None]
    # A column of the padded image, counted from its other end.
    columns = torch.where(mirror[:, None] == 1, width + 2 * by - 1 - columns, columns)
    each = torch.arange(count, device=images.device)
    return padded[each[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
