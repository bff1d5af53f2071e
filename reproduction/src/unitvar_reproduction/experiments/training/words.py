"""What the study's initialisations and optimisers are called in tables, figures and on the page."""

from __future__ import annotations

from unitvar_reproduction.experiments.training.families import ours

__all__ = ["CALLS", "OPTIMISERS", "title"]

OPTIMISERS = {"adamw": "AdamW", "nesterov": "Nesterov momentum"}

NAMES = {
    "default": "torch's default",
    "he": "He",
    "xavier": "Xavier",
    "xavier-all": "Xavier, embeddings too",
    "gpt2": "GPT-2's",
    "trunc-normal": "N(0, 0.02²), truncated",
    "torchvision": "torchvision's",
    "keras": "orthogonal recurrent (Keras')",
    "lsuv": "LSUV",
}
CALLS = {
    "damped": 'residual="damped"',
    "scaled": 'residual="scaled"',
    "unit": 'residual="unit"',
    "zero": 'residual="zero"',
    "paper": 'mode="paper"',
    "mean": 'mode="mean"',
    "measured": 'method="measured"',
    "orthonormal": 'distribution="orthonormal"',
    **{f"gain-{gain}": f"gain={gain}" for gain in (0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 2)},
    "embeddings": 'embeddings="unit"',
}
"""Initialisation → the option of ``initialize_`` that makes it."""


def title(init: str, family: str | None = None) -> str:
    """Return what an initialisation is called; of a family, its own defaults by the name of the function."""
    if family is not None and init == ours(family):
        return "initialize_"
    return NAMES.get(init) or CALLS[init]
