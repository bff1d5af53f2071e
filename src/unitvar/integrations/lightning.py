"""Lightning callbacks: initialise before fit, watch while training, re-estimate BatchNorm. Run with Lightning 2.6.6."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from copy import copy
from typing import Any

from torch import nn

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError("unitvar.integrations.lightning needs Lightning: pip install lightning.") from error

from unitvar.batchnorm import BatchNormReport
from unitvar.batchnorm.estimated import Estimated
from unitvar.batchnorm.feed import apply
from unitvar.batchnorm.methods import find_layers
from unitvar.flow import History, watch
from unitvar.integrations import loggers
from unitvar.planning import Plan, initialize_

TRAINING = "unitvar_training_statistics"  # in a checkpoint: the running statistics that training goes on with


class InitializeWeights(Callback):
    """Initialise a model as :func:`unitvar.initialize_` does, before anything is trained.

    It runs when ``fit`` sets up, before a checkpoint is loaded: resuming keeps the weights of the checkpoint.

    Args:
        example: what the model takes; by default its ``example_input_array``.
        **options: as for :func:`unitvar.initialize_`.

    Attributes:
        plan: what was done.
    """

    def __init__(self, example: Any = None, **options: Any) -> None:
        self.example = example
        self.options = options
        self.plan: Plan | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Initialise the model for fit, and for nothing else."""
        example = pl_module.example_input_array if self.example is None else self.example
        if stage != TrainerFn.FITTING:
            return
        if example is None:
            raise ValueError(
                f"InitializeWeights(example=None) needs {type(pl_module).__name__}.example_input_array, which is None: "
                "set it, or pass an example of what forward takes."
            )
        self.plan = initialize_(pl_module, example, **self.options)


class WatchVariance(Callback):
    """Log signals, gradients and updates to the trainer's loggers, as :func:`unitvar.watch` does.

    A step is a training batch, whatever parts of the module ``training_step`` calls.

    Args:
        every: how many batches from one observation to the next.
        writer: where to log instead of the trainer's loggers; see :func:`unitvar.watch`.

    Attributes:
        history: what was observed.
    """

    def __init__(self, every: int = 100, *, writer: Any = None) -> None:
        self.every = every
        self.writer = writer
        self.history: History | None = None
        self._open = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to watch; batches are counted on after a resume."""
        writer = loggers.lightning(*trainer.loggers) if self.writer is None else self.writer
        self.history = self._open.enter_context(watch(pl_module, every=self.every, writer=writer, marked=True))
        self.history.steps = trainer.fit_loop.total_batch_idx + 1

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Begin a step."""
        assert self.history is not None
        self.history.begin()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """End it."""
        assert self.history is not None
        self.history.end()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop watching."""
        self._open.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop watching."""
        self._open.close()


class ReestimateBatchNorm(Callback):
    """Validate with re-estimated BatchNorm statistics, save them in checkpoints, and keep them at the end of fit.

    Before each validation during fit the statistics are computed as :func:`unitvar.reestimate_bn_` does, for the
    weights that are validated: with Lightning's ``WeightAveraging``, or another callback that swaps weights, the
    averaged ones. The order of callbacks does not matter. Training goes on with its own statistics, bit for bit.

    A checkpoint with the weights that were validated has their re-estimated statistics in ``state_dict``, so that
    ``trainer.test(ckpt_path="best")`` and ``load_from_checkpoint`` give what was validated. Those of training are
    beside them, and ``trainer.fit(ckpt_path=...)`` goes on with those.

    Batches are read as the trainer reads them: in its precision, through the hooks of the module and of the data module
    that prepare a batch (``on_after_batch_transfer``, say).

    Args:
        batches: what to re-estimate from; by default the trainer's training data, as many batches as an epoch has.
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
        self._estimated: Estimated | None = None
        self._validating = False

    @property
    def report(self) -> BatchNormReport | None:
        """Return the report of the latest re-estimation."""
        return None if self._estimated is None else self._estimated.report

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Come after all other callbacks but checkpoints: when training ends, weights are averaged first."""
        others = [callback for callback in trainer.callbacks if callback is not self]  # type: ignore[attr-defined]
        if any(isinstance(callback, ReestimateBatchNorm) for callback in others):
            raise ValueError(
                "The trainer has two ReestimateBatchNorm callbacks, which would undo each other: keep one."
            )
        last = [callback for callback in others if isinstance(callback, Checkpoint)]
        trainer.callbacks = [*(c for c in others if c not in last), self, *last]  # type: ignore[attr-defined]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse now what would fail after the first epoch: a model without BatchNorm, several loaders."""
        self._estimated, self._validating = None, False
        find_layers(pl_module, frozen=True)
        self._batches(trainer)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Set the statistics before the first batch: whoever swaps weights for a validation has done so by then."""
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if self.validation and fitting and not self._validating:
            self._reestimate(trainer, pl_module)
            self._validating = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the statistics of training back."""
        if self._validating and self._estimated is not None:
            self._estimated.undo(pl_module)
        self._validating = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put the statistics of training back when a validation fails."""
        self.on_validation_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the statistics for good: those of the last validation, if the weights have not changed since."""
        if self._estimated is not None and self._estimated.belongs_to(dict(pl_module.named_parameters())):
            self._estimated.apply_(pl_module)
        else:
            self._reestimate(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the statistics with the weights that they belong to, and those of training beside them."""
        if self._estimated is not None and self._estimated.belongs_to(checkpoint["state_dict"]):
            checkpoint[TRAINING] = self._estimated.others(pl_module)
            checkpoint["state_dict"] = copy(checkpoint["state_dict"])
            checkpoint["state_dict"].update(self._estimated.state)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Go on training with the statistics of training."""
        if trainer.state.fn == TrainerFn.FITTING:
            pl_module.load_state_dict(checkpoint.get(TRAINING, {}), strict=False)

    def _reestimate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        batches, most = self._batches(trainer)
        precision, own = trainer.precision_plugin, self.options.get("forward")

        def forward(model: nn.Module, batch: Any) -> Any:  # as Lightning's loops prepare a batch
            batch = pl_module._on_before_batch_transfer(precision.convert_input(batch))
            return apply(model, trainer.strategy.batch_to_device(batch), 0, own)

        with precision.forward_context():
            self._estimated = Estimated(pl_module, batches, **{"max_batches": most, **self.options, "forward": forward})

    def _batches(self, trainer: Trainer) -> tuple[Any, int | None]:
        """Return what to re-estimate from, and how many batches at most: an endless loader must end somewhere."""
        if self.batches is not None:
            return self.batches, None
        loader: Any = trainer.train_dataloader
        if isinstance(loader, (dict, list, tuple)):
            raise TypeError(
                f"The trainer has a {type(loader).__name__} of training loaders: say what to re-estimate from, and how "
                "to run it, with ReestimateBatchNorm(batches=..., forward=lambda model, batch: model(...))."
            )
        epoch, steps = trainer.num_training_batches, trainer.max_steps
        whole = steps * trainer.accumulate_grad_batches if steps >= 0 else math.inf
        most = epoch if epoch < math.inf else whole
        return loader, None if most == math.inf else int(most)
