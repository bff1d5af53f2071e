"""The families of ``zoo`` in small: name → maker of a model and its example."""

from __future__ import annotations

import zoo
from zoo import Family
from zoo.convolutional import Model

__all__ = ["HUGGING_FACE", "OTHER", "PLAIN", "TIMM", "Family", "Model"]

PLAIN: dict[str, Family] = {name: small for name, (_, small) in zoo.PLAIN.items()}
OTHER: dict[str, Family] = {name: small for name, (_, small) in zoo.ATTENDING.items()}
HUGGING_FACE: dict[str, Family] = {name: small for name, (_, small) in zoo.HUGGING_FACE.items()}
TIMM: dict[str, Family] = {name: small for name, (_, small) in zoo.TIMM.items()}
