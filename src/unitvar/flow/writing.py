"""Rows to loggers: one function of (values, step), whatever is behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from unitvar.flow.tally import labelled

__all__ = ["Writer", "scalars", "writing"]

Writer = Callable[[Mapping[str, float], int], object]
NUMBERS = ("mean", "variance", "gradient", "dead", "weight_gradient_norm", "update_ratio")


def writing(writer: Any) -> Writer:
    """Turn what a user passes as a writer into a function of (values, step).

    Args:
        writer: such a function, or a TensorBoard ``SummaryWriter``.

    Returns:
        The function.
    """
    if callable(getattr(writer, "add_scalar", None)):

        def write(values: Mapping[str, float], step: int) -> None:
            for tag, value in values.items():
                writer.add_scalar(tag, value, step)

        return write
    if callable(writer):
        return writer  # type: ignore[no-any-return]
    raise TypeError(
        f"writer={writer!r} has no add_scalar and is not a function of (values, step): pass a "
        "torch.utils.tensorboard.SummaryWriter, or what unitvar.integrations.loggers gives."
    )


def scalars(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Name every number of some rows: ``variance/features.0.weight``."""
    found = ((what, row) for row in rows for what in NUMBERS)
    return {
        f"{what}/{labelled(row['name'], row['use'])}": row[what] for what, row in found if row.get(what) is not None
    }
