"""Weight averaging: BatchNorm statistics are those of the weights that are evaluated, whoever averages them."""

import importlib
import warnings
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import unitvar
from zoo.timm_models import _without_torchvision

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations at import
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import (
        EMAWeightAveraging,
        ModelCheckpoint,
        StochasticWeightAveraging,
        WeightAveraging,
    )

    from unitvar.integrations.lightning import ReestimateBatchNorm

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
LOADER = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16)


class Net(LightningModule):
    """A network whose first BatchNorm's true statistics have a closed form, and that notes what each phase sees."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8),
            nn.ReLU(), nn.Linear(8, 1),
        )  # fmt: skip
        self.seen: list[dict[str, Tensor]] = []
        self.trained: list[dict[str, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        torch.manual_seed(self.global_step)  # a checkpoint of Lightning's has no random state
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def on_train_batch_end(self, *args: object) -> None:
        self.trained.append(deepcopy(self.net.state_dict()))

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        if not self.trainer.sanity_checking:
            self.log("loss", nn.functional.mse_loss(self(batch[0]), batch[1]))
            with torch.no_grad():
                actual = self.net[0](X.to(self.net[0].weight.dtype)).float()
            self.seen.append(deepcopy(self.net.state_dict()) | {"actual": actual})

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SwapParameters(Callback):
    """An average as users write it: parameters only, swapped around the whole validation."""

    def __init__(self) -> None:
        self.average: dict[str, Tensor] = {}

    def on_train_batch_end(self, trainer: Trainer, model: LightningModule, *args: object) -> None:
        for name, p in model.named_parameters():
            self.average[name] = 0.8 * self.average.get(name, p.detach()) + 0.2 * p.detach()

    def swap(self, trainer: Trainer, model: LightningModule) -> None:
        for name, p in model.named_parameters():
            if self.average:
                p.data, self.average[name] = self.average[name], p.data

    on_validation_start = on_validation_end = on_train_end = swap


AVERAGES = {
    "none": Callback,
    "ema": lambda: EMAWeightAveraging(decay=0.8),
    "ema, its own buffers": lambda: EMAWeightAveraging(decay=0.8, use_buffers=False),
    "mean": WeightAveraging,
    "swa": lambda: StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1),
    "by hand": SwapParameters,
}


def trainer(folder: Path, average: Callback, *, ours: str = "last", epochs: int = 3, **options: object) -> Trainer:
    callbacks = {"last": [average, ReestimateBatchNorm()], "first": [ReestimateBatchNorm(), average], "": [average]}
    checkpoints = ModelCheckpoint(folder, monitor="loss", save_top_k=-1, filename="{step}")
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return Trainer(max_epochs=epochs, callbacks=[*callbacks[ours], checkpoints], **quiet, **options)


def fit(model: Net, run: Trainer, **options: object) -> Net:
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and the like
        run.fit(model, LOADER, LOADER, **options)
    return model


def network() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("ours", ["first", "last"])
def test_every_validation_and_the_end_have_the_statistics_of_their_weights(tmp_path, average: str, ours: str) -> None:
    model = fit(network(), trainer(tmp_path, AVERAGES[average](), ours=ours))
    assert len(model.seen) >= 12
    for seen in model.seen:
        torch.testing.assert_close(seen["2.running_var"], seen["actual"].var(0), rtol=1e-5, atol=0)
        torch.testing.assert_close(seen["2.running_mean"], seen["actual"].mean(0), rtol=1e-4, atol=1e-6)
    averaged = average != "none"
    assert averaged != torch.equal(model.seen[-1]["0.weight"], model.trained[-1]["0.weight"]) or average == "swa"
    with torch.no_grad():
        torch.testing.assert_close(model.net[2].running_var, model.net[0](X).var(0), rtol=1e-5, atol=0)
    # The deeper layer too, against a second estimate with the final weights.
    before = model.net[5].running_var.clone()
    unitvar.reestimate_bn_(model, LOADER)
    assert torch.equal(model.net[5].running_var, before)


@pytest.mark.parametrize("average", ["none", "ema", "mean", "swa", "by hand"])
def test_training_is_the_same_bits_with_and_without(tmp_path, average: str) -> None:
    with_ours, without = (
        fit(network(), trainer(tmp_path / name, AVERAGES[average](), ours=name)) for name in ("first", "")
    )
    assert len(with_ours.trained) == len(without.trained)
    for one, two in zip(with_ours.trained, without.trained, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(map(torch.equal, with_ours.parameters(), without.parameters()))


@pytest.mark.parametrize(("precision", "rtol"), [("bf16-mixed", 1e-5), ("bf16-true", 1e-2)])
def test_statistics_are_those_of_the_precision_that_is_used(tmp_path, precision: str, rtol: float) -> None:
    model = fit(network(), trainer(tmp_path, AVERAGES["ema"](), precision=precision))
    for seen in model.seen:
        torch.testing.assert_close(seen["2.running_var"].float(), seen["actual"].var(0), rtol=rtol, atol=0)


@pytest.mark.parametrize("average", ["none", "ema", "mean"])
@pytest.mark.parametrize("ours", ["first", "last"])
def test_a_checkpoint_tests_as_it_validated_and_resumes_as_if_it_had_not_stopped(tmp_path, average, ours) -> None:
    whole = fit(network(), trainer(tmp_path, AVERAGES[average](), ours=ours))
    path = tmp_path / "step=4.ckpt"  # after the first of three epochs
    resumed = fit(network(), trainer(tmp_path / "resumed", AVERAGES[average](), ours=ours), ckpt_path=path)
    assert [len(model.trained) for model in (whole, resumed)] == [12, 8]
    for one, two in zip(whole.trained[4:], resumed.trained, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    for name, value in whole.net.state_dict().items():
        assert torch.equal(value, resumed.net.state_dict()[name])
    tested, validated = network(), whole.seen[:4]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(tmp_path, AVERAGES[average](), ours=ours).test(tested, LOADER, ckpt_path=path, verbose=False)
        loaded = Net.load_from_checkpoint(path)
    for one, two in zip(tested.seen, validated, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(value, validated[0][name]) for name, value in loaded.net.state_dict().items())


def test_averages_without_a_framework() -> None:
    """AveragedModel and timm's averages: the statistics are those of the averaged weights, and the source keeps its."""
    with _without_torchvision():
        timm = importlib.import_module("timm.utils.model_ema")
    source = network().net
    averages = [
        (AveragedModel(source, multi_avg_fn=get_ema_multi_avg_fn(0.8)), AveragedModel.update_parameters),
        (AveragedModel(source, use_buffers=True), AveragedModel.update_parameters),
        (timm.ModelEmaV2(source, decay=0.8), timm.ModelEmaV2.update),
        (timm.ModelEmaV3(source, decay=0.8), timm.ModelEmaV3.update),
    ]
    optimizer = torch.optim.SGD(source.parameters(), lr=0.1)
    for x, y in 3 * list(LOADER):
        optimizer.zero_grad()
        nn.functional.mse_loss(source(x), y).backward()
        optimizer.step()
        for average, update in averages:
            update(average, source)
    before = deepcopy(source.state_dict())
    for average, _ in averages:
        assert not torch.equal(average.module[0].weight, source[0].weight)
        report = unitvar.reestimate_bn_(average, LOADER)
        assert [layer.name for layer in report] == ["module.2", "module.5"]
        with torch.no_grad():
            actual = average.module[0](X)
        torch.testing.assert_close(average.module[2].running_var, actual.var(0), rtol=1e-5, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in source.state_dict().items())
