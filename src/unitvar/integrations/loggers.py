"""Loggers as what ``unitvar.watch(writer=...)`` and ``report.write(...)`` take: functions of (values, step).

Run with TensorBoard 2.20, Weights & Biases 0.31, MLflow 3.17 and the loggers of Lightning 2.6.6. A TensorBoard
``SummaryWriter`` needs no adapter. None of these packages is imported here: you pass what you already have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from unitvar.flow.writing import Writer

__all__ = ["lightning", "mlflow", "wandb"]

GROUP = "unitvar"


def wandb(run: Any) -> Writer:
    """Log to a Weights & Biases run, under ``unitvar/`` and against a step of their own.

    W&B drops what comes with a step below its latest; with a step axis of their own, these values cannot collide with
    what the loop logs.

    Args:
        run: what ``wandb.init()`` returns.

    Returns:
        A writer.
    """
    run.define_metric(f"{GROUP}/step")
    run.define_metric(f"{GROUP}/*", step_metric=f"{GROUP}/step")

    def write(values: Mapping[str, float], step: int) -> None:
        run.log({f"{GROUP}/step": step} | {f"{GROUP}/{tag}": value for tag, value in values.items()})

    return write


def mlflow(client: Any, run_id: str | None = None) -> Writer:
    """Log to MLflow, under ``unitvar/``.

    Args:
        client: the ``mlflow`` module, which logs to the active run, or whatever has its ``log_metrics``.
        run_id: another run than the active one.

    Returns:
        A writer.
    """

    def write(values: Mapping[str, float], step: int) -> None:
        # MLflow takes letters, digits, _ - . : / and spaces; the second use of a weight is "name #2".
        named = {re.sub(r"[^\w\-.:/ ]", "_", f"{GROUP}/{tag}"): value for tag, value in values.items()}
        client.log_metrics(named, step=step, run_id=run_id)

    return write


def lightning(*loggers: Any) -> Writer:
    """Log to Lightning's loggers, such as ``trainer.loggers``, under ``unitvar/``.

    Args:
        *loggers: whatever has ``log_metrics(metrics, step)``.

    Returns:
        A writer.
    """

    def write(values: Mapping[str, float], step: int) -> None:
        for logger in loggers:
            logger.log_metrics({f"{GROUP}/{tag}": value for tag, value in values.items()}, step)

    return write
