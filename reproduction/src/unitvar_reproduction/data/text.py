"""Text as characters in memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unitvar_reproduction.data import read
from unitvar_reproduction.data.fetch import ensure

__all__ = ["Text", "tinyshakespeare"]


@dataclass(frozen=True)
class Text:
    """Characters as numbers [N], and the characters that these numbers stand for."""

    codes: Tensor
    alphabet: str

    def windows(self, length: int) -> Tensor:
        """Return every stretch of so many characters, as a view [N - length + 1, length]."""
        if not 0 < length <= len(self.codes):
            raise ValueError(f"length={length} is not between 1 and the {len(self.codes)} characters there are.")
        return self.codes.unfold(0, length, 1)

    def split(self, *fractions: float) -> tuple[Text, ...]:
        """Cut the text at fractions of its length, in order."""
        ends = [0, *(round(f * len(self.codes)) for f in fractions), len(self.codes)]
        return tuple(Text(self.codes[a:b], self.alphabet) for a, b in itertools.pairwise(ends))


def tinyshakespeare(data_dir: Path | None = None) -> Text:
    """Read Karpathy's 1.1 million characters of Shakespeare, from a folder or from the cache."""
    text = read.text(ensure("tinyshakespeare", data_dir), "tinyshakespeare/input.txt")
    alphabet = "".join(sorted(set(text)))
    numbers = {character: i for i, character in enumerate(alphabet)}
    return Text(torch.tensor([numbers[c] for c in text]), alphabet)
