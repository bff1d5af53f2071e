"""Hugging Face's callbacks, under a real Trainer."""

import warnings
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import unitvar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations at import
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from unitvar.integrations.huggingface import ReestimateBatchNorm, WatchVariance

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
DATA = [{"x": x, "labels": x.sum(0, keepdim=True)} for x in X]


class Net(nn.Module):
    def __init__(self, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), norm(8), nn.ReLU(), nn.Linear(8, 1))
        self.evaluated: list[tuple[Tensor, Tensor]] = []
        self.trained: list[Tensor] = []

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        out = self.net(x)
        if self.training:
            self.trained.append(self.net[2].running_var.clone())
        elif len(x) < len(X):  # an evaluation, not a re-estimation
            self.evaluated.append((self.net[2].running_var.clone(), self.net[0](X).float().var(0)))
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def trained(
    folder: Path, *callbacks: object, model: Net | None = None, train_on: object = DATA, evaluate_on: object = DATA,
    **options: object,
) -> tuple[Trainer, Net]:  # fmt: skip
    torch.manual_seed(0)
    model = model or Net()
    settings = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no", "seed": 1}
    settings |= {"num_train_epochs": 2, "per_device_train_batch_size": 16, "save_strategy": "no"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = TrainingArguments(str(folder), **(settings | options))
        trainer = Trainer(model, args, train_dataset=train_on, eval_dataset=evaluate_on, callbacks=list(callbacks))
        trainer.train()
    return trainer, model


@pytest.mark.parametrize(("evaluate_on", "bf16"), [(DATA, False), ({"one": DATA, "two": DATA}, True)])
def test_every_evaluation_has_statistics_of_its_weights_and_training_its_own(tmp_path, evaluate_on, bf16) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 3, "bf16": bf16, "evaluate_on": evaluate_on}
    # All data in one batch: what bn_statistics then runs ends in the same numbers as the evaluation.
    callback = ReestimateBatchNorm([{"x": X, "labels": X.sum(1, keepdim=True)}])
    _, model = trained(tmp_path, callback, **options)
    _, alone = trained(tmp_path, **options)
    assert len(model.trained) == len(alone.trained) == 8
    assert all(map(torch.equal, model.trained, alone.trained))
    assert all(map(torch.equal, model.parameters(), alone.parameters()))
    assert len(model.evaluated) == 3 * 8 * (2 if bf16 else 1)  # at steps 3 and 6 and at the end, eight batches a set
    for stored, actual in model.evaluated:
        torch.testing.assert_close(stored, actual, rtol=1e-4, atol=0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        actual = model.net[0](X).float().var(0)
    torch.testing.assert_close(model.net[2].running_var, actual, rtol=1e-4, atol=0)
    assert isinstance(callback.report, unitvar.BatchNormReport)


def test_the_best_checkpoint_evaluates_as_it_did(tmp_path) -> None:
    saving = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainer, model = trained(tmp_path, ReestimateBatchNorm(), **saving)
    best = trainer.state.best_metric
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert trainer.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(model.net[2].running_var, model.net[0](X).var(0), rtol=1e-4, atol=0)


class SwapAverage(TrainerCallback):
    """An average as users write it: parameters only, swapped in for an evaluation and back after it."""

    def __init__(self) -> None:
        self.average: dict[str, Tensor] = {}

    def on_step_end(self, args, state, control, *, model, **kwargs) -> None:
        for name, p in model.named_parameters():
            self.average[name] = 0.8 * self.average.get(name, p.detach().clone()) + 0.2 * p.detach()

    def on_epoch_end(self, args, state, control, *, model, **kwargs) -> None:
        for name, p in model.named_parameters():
            p.data, self.average[name] = self.average[name], p.data

    on_evaluate = on_epoch_end


@pytest.mark.parametrize("ours", ["first", "last"])
def test_averaged_weights_are_evaluated_with_their_statistics_and_saved_weights_have_theirs(tmp_path, ours) -> None:
    callbacks = [ReestimateBatchNorm(), SwapAverage()]
    options = {"learning_rate": 0.1, "eval_strategy": "epoch", "save_strategy": "epoch"}
    _, model = trained(tmp_path, *(callbacks if ours == "first" else callbacks[::-1]), **options)
    _, alone = trained(tmp_path / "alone", SwapAverage(), **options)
    assert len(model.evaluated) == 2 * 8
    assert not torch.allclose(*alone.evaluated[-1], rtol=1e-2)
    for stored, actual in model.evaluated:
        torch.testing.assert_close(stored, actual, rtol=1e-4, atol=0)
    # The weights are back when a checkpoint is saved; so are the statistics of training, as without the callback.
    for step in (4, 8):
        saved, expected = (
            load_file(folder / f"checkpoint-{step}" / "model.safetensors") for folder in (tmp_path, tmp_path / "alone")
        )
        assert all(torch.equal(saved[name], expected[name]) for name in expected)
    assert all(map(torch.equal, model.trained, alone.trained))
    assert not model._forward_pre_hooks
    assert not model._state_dict_pre_hooks


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield from DATA


def test_data_without_an_end_is_read_as_far_as_training_reads_it(tmp_path) -> None:
    callback = ReestimateBatchNorm()
    options = {"max_steps": 2, "gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    _, model = trained(tmp_path, callback, train_on=Endless(), **options)
    assert callback.report["net.2"].batches == 4
    for stored, actual in model.evaluated:
        torch.testing.assert_close(stored, actual, rtol=1e-4, atol=0)


def test_a_model_without_batch_norm_is_refused_before_it_is_trained(tmp_path) -> None:
    with pytest.raises(ValueError, match="no BatchNorm with running statistics"):
        trained(tmp_path, ReestimateBatchNorm(), model=Net(nn.LayerNorm), max_steps=1)


class Fails(TrainerCallback):
    fails = True

    def on_evaluate(self, *args, **kwargs) -> None:
        if self.fails:
            raise RuntimeError("evaluation broke")


def test_after_an_evaluation_that_failed_training_starts_with_what_the_model_then_has(tmp_path) -> None:
    model, other, callback = Net(), Fails(), ReestimateBatchNorm()
    for new in (None, 5.0):
        model.trained.clear()
        other.fails = True
        with pytest.raises(RuntimeError, match="evaluation broke"):
            trained(tmp_path, callback, other, model=model, eval_strategy="epoch", num_train_epochs=1)
        if new is not None:
            model.net[2].running_var.fill_(new)  # as a checkpoint would
        last, before = model.trained[-1], model.net[2].running_var.clone()
        model.trained.clear()
        other.fails = False
        trained(tmp_path, callback, other, model=model, eval_strategy="epoch", num_train_epochs=1)
        # One step of a momentum of 0.1 from there.
        start = last if new is None else before
        assert ((model.trained[0] - 0.9 * start) > 0).all()
        assert ((model.trained[0] - 0.9 * start) < 0.1 * 2).all()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_model_is_watched_and_training_is_the_same_bits(tmp_path, accumulate: int) -> None:
    written: list[int] = []
    callback = WatchVariance(every=2, writer=lambda values, step: written.append(step))
    _, model = trained(tmp_path, callback, gradient_accumulation_steps=accumulate)
    _, alone = trained(tmp_path, gradient_accumulation_steps=accumulate)
    assert all(map(torch.equal, model.parameters(), alone.parameters()))
    expected = list(range(0, 8 // accumulate, 2))
    assert written == expected
    assert callback.history.steps == 8 // accumulate
    rows = callback.history.rows
    assert [(row["step"], row["name"]) for row in rows] == [
        (s, n) for s in expected for n in ("net.0.weight", "net.4.weight")
    ]
    assert all(row["variance"] > 0 and row["gradient"] > 0 and row["update_ratio"] > 0 for row in rows)


def test_a_model_initialised_from_a_configuration_is_what_the_trainer_trains() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes))
    before = deepcopy(model.state_dict())
    example = {"input_ids": torch.randint(50, (4, 6)), "attention_mask": torch.ones(4, 6, dtype=torch.long)}
    plan = unitvar.initialize_(model, example)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {layer.name for layer in plan.layers} <= changed
