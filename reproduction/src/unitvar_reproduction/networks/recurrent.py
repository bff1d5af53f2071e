"""Recurrent networks over characters, and a deep autoencoder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["CharacterRNN", "autoencoder"]

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class CharacterRNN(nn.Module):
    """Zaremba et al.'s: an embedding, two recurrent layers, dropout on what is not recurrent, a head."""

    def __init__(self, vocabulary: int, width: int, cell: str, dropout: float) -> None:
        super().__init__()
        self.tokens, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        self.cell = CELLS[cell](width, width, 2, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score."""
        return self.head(self.drop(self.cell(self.drop(self.tokens(tokens)))[0]))  # type: ignore[no-any-return]


def autoencoder(pixels: int, sizes: Sequence[int], dropout: float) -> nn.Sequential:
    """Build a deep denoising autoencoder: pixels dropped at the input, ReLU layers down and up, a score a pixel."""
    widths = (pixels, *sizes, *reversed(sizes[:-1]))
    layers: list[nn.Module] = [nn.Flatten(), nn.Dropout(dropout)]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], pixels))
