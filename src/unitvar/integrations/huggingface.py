"""Callbacks of Hugging Face's Trainer: watch while training, re-estimate BatchNorm. Run with transformers 5.22.2."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, IterableDataset

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "unitvar.integrations.huggingface needs transformers: pip install 'transformers[torch]'."
    ) from error

from unitvar.batchnorm import BatchNormReport, reestimate_bn_, reestimated_bn
from unitvar.flow import History, watch


class WatchVariance(TrainerCallback):
    """Record what flows through a model while it trains, as :func:`unitvar.watch` does.

    A step is a step of the optimiser; of gradients that are accumulated, the first batch is observed.

    Args:
        every: how many steps from one observation to the next.
        writer: where to log; see :func:`unitvar.watch`.

    Attributes:
        history: what was observed.
    """

    def __init__(self, every: int = 100, *, writer: Any = None) -> None:
        self.every = every
        self.writer = writer
        self.history: History | None = None
        self._open = ExitStack()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to watch; steps are counted on after a resume."""
        self._open.close()  # of a training that failed
        self.history = self._open.enter_context(
            watch(kwargs["model"], every=self.every, writer=self.writer, marked=True)
        )
        self.history.steps = state.global_step

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin a step."""
        assert self.history is not None
        self.history.begin()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End it after its first batch."""
        assert self.history is not None
        self.history.end()

    on_step_end = on_substep_end

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop watching."""
        self._open.close()


class ReestimateBatchNorm(TrainerCallback):
    """Evaluate and save with re-estimated BatchNorm statistics, and keep them at the end of training.

    When a step or an epoch ends with an evaluation, the statistics are set as :func:`unitvar.reestimate_bn_` does. The
    evaluation, of one data set or of several, and a checkpoint saved right after it have them; the next step has those
    of training again. A callback that swaps averaged weights in when a step ends has to come before this one.

    Args:
        batches: what to re-estimate from; by default the training data, in batches of the training's size.
        evaluation: whether to do so for each evaluation, which costs an extra pass; ``max_batches`` bounds it.
        **options: as for :func:`unitvar.reestimate_bn_`.

    Attributes:
        report: of the latest re-estimation.
    """

    def __init__(self, batches: Iterable[Any] | None = None, *, evaluation: bool = True, **options: Any) -> None:
        self.batches = batches
        self.evaluation = evaluation
        self.options = options
        self.report: BatchNormReport | None = None
        self._until_next_step = ExitStack()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set the statistics if an evaluation comes next."""
        if self.evaluation and control.should_evaluate:
            self._until_next_step.close()
            context = reestimated_bn(kwargs["model"], self._batches(args, kwargs["train_dataloader"]), **self.options)
            self.report = self._until_next_step.enter_context(context)

    on_epoch_end = on_step_end

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the statistics of training back."""
        self._until_next_step.close()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the statistics for good, of the best weights if those were loaded."""
        self._until_next_step.close()
        model: nn.Module = kwargs["model"]
        self.report = reestimate_bn_(model, self._batches(args, kwargs["train_dataloader"]), **self.options)

    def _batches(self, args: TrainingArguments, loader: Any) -> Iterable[Any]:
        """Read the training data by a loader of our own: the trainer's counts who reads it."""
        if self.batches is not None:
            return self.batches
        shuffle = not isinstance(loader.dataset, IterableDataset)
        return DataLoader(loader.dataset, args.train_batch_size, shuffle=shuffle, collate_fn=loader.collate_fn)
