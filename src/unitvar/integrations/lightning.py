"""BatchNorm re-estimation as a Lightning callback."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError("unitvar.integrations.lightning needs Lightning: pip install lightning.") from error

from unitvar.batchnorm import BatchNormReport, reestimate_bn_, reestimated_bn


class ReestimateBatchNorm(Callback):
    """Validate with re-estimated BatchNorm statistics, and keep them at the end of fit.

    Before each validation during fit the statistics are set as :func:`unitvar.reestimate_bn_` does; after it those of
    training are back, so training and its checkpoints are undisturbed. When training ends they are set for good.

    Args:
        batches: what to re-estimate from; by default the trainer's training data.
        validation: whether to do so before each validation, which costs an extra pass; ``max_batches`` bounds it.
        **options: as for :func:`unitvar.reestimate_bn_`.

    Example:
        >>> callback = ReestimateBatchNorm(max_batches=100)
        >>> trainer = Trainer(callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, batches: Iterable[Any] | None = None, *, validation: bool = True, **options: Any) -> None:
        self.batches = batches
        self.validation = validation
        self.options = options
        self.report: BatchNormReport | None = None  # of the latest re-estimation
        self._until_end = ExitStack()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the statistics for one validation, but not for the sanity check, before anything is trained."""
        if self.validation and trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            with trainer.precision_plugin.forward_context():
                context = reestimated_bn(pl_module, self._batches(trainer), **self.options)
                self.report = self._until_end.enter_context(context)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the statistics of training back."""
        self._until_end.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put the statistics of training back when a validation fails."""
        self._until_end.close()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the statistics for good."""
        with trainer.precision_plugin.forward_context():
            self.report = reestimate_bn_(pl_module, self._batches(trainer), **self.options)

    def _batches(self, trainer: Trainer) -> Any:
        return trainer.train_dataloader if self.batches is None else self.batches
