"""Callbacks of Hugging Face's Trainer: watch while training, re-estimate BatchNorm. Run with transformers 5.22.2."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "unitvar.integrations.huggingface needs transformers: pip install 'transformers[torch]'."
    ) from error

from unitvar.batchnorm import BatchNormReport
from unitvar.batchnorm.estimated import Estimated, WhenEvaluated
from unitvar.batchnorm.methods import find_layers
from unitvar.flow import History, watch
from unitvar.running.modules import inner


class WatchVariance(TrainerCallback):
    """Record signals, gradients and updates while a model trains, as :func:`unitvar.watch` does.

    A step is a step of the optimiser. With gradient accumulation, its first batch is observed.

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

    When a step or an epoch ends with an evaluation, the statistics are set before its first batch, as
    :func:`unitvar.reestimate_bn_` does, for the weights that are then in the model: the averaged ones where another
    callback has swapped them in, in whatever order callbacks come. The evaluation, of one data set or of several, and a
    checkpoint of the same weights that is saved after it have these statistics; the next step has those of training.

    Args:
        batches: what to re-estimate from; by default the training data, in batches of the training's size; of a data
            set without a length, no more than training reads.
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
        self._until_next_step: WhenEvaluated | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse a model without BatchNorm now instead of at the first evaluation."""
        self._end(kwargs["model"])  # of a training that failed
        find_layers(inner(kwargs["model"]), frozen=True)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Have the statistics set if an evaluation comes next, when all other callbacks have swapped weights."""
        if self.evaluation and control.should_evaluate:
            self._end(kwargs["model"])
            estimate = partial(self._reestimate, args, state, **kwargs)
            self._until_next_step = WhenEvaluated(kwargs["model"], estimate)

    on_epoch_end = on_step_end

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the statistics of training back."""
        self._end(kwargs["model"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the statistics for good, of the best weights if those were loaded."""
        self._end(kwargs["model"])
        self._reestimate(args, state, **kwargs)

    def _reestimate(self, args: TrainingArguments, state: TrainerState, **kwargs: Any) -> Estimated:
        found = Estimated(kwargs["model"], **{**self._batches(args, state, kwargs["train_dataloader"]), **self.options})
        self.report = found.report
        return found

    def _end(self, model: Any) -> None:
        if self._until_next_step is not None:
            self._until_next_step.end(model)
        self._until_next_step = None

    def _batches(self, args: TrainingArguments, state: TrainerState, loader: Any) -> dict[str, Any]:
        """Read the training data by a loader of our own, as the trainer's counts who reads it, and not without end."""
        if self.batches is not None:
            return {"batches": self.batches}
        endless = isinstance(loader.dataset, IterableDataset)
        own = DataLoader(loader.dataset, args.train_batch_size, shuffle=not endless, collate_fn=loader.collate_fn)
        most = state.max_steps * args.gradient_accumulation_steps
        return {"batches": own, "max_batches": most if endless else None}
