"""ReestimateBatchNorm where training is not simple: hooks, loaders without an end, ranks, checkpoints of others."""

import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations at import
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.callbacks import EMAWeightAveraging

    from unitvar.integrations.lightning import TRAINING, ReestimateBatchNorm

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, X.sum(1, keepdim=True))
LOADER = DataLoader(DATA, batch_size=16)


class Net(LightningModule):
    """Notes what each validation has stored, and what the layer sees there of all training data."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        middle = nn.BatchNorm1d(8) if norm else nn.LayerNorm(8)
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), middle, nn.ReLU(), nn.Linear(8, 1))
        self.inputs = X
        self.trained: list[Tensor] = []
        self.validated: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def on_train_batch_end(self, *args: object) -> None:
        self.trained.append(torch.cat([t.flatten() for t in self.net.state_dict().values()]))

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append((self.net[2].running_var.clone(), self.net[0](self.inputs).var(0)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, *callbacks: Callback, model: LightningModule | None = None, **options: object) -> Net:
    torch.manual_seed(0)
    model = model or Net()
    data = {key: options.pop(key) for key in ("train_dataloaders", "datamodule", "ckpt_path") if key in options}
    if "datamodule" not in data:
        data = {"train_dataloaders": LOADER, "val_dataloaders": LOADER} | data
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and the like
        trainer = Trainer(
            **({"max_epochs": 2, "default_root_dir": folder} | quiet | options), callbacks=list(callbacks)
        )
        trainer.fit(model, **data)
    return model


def exact(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    return bool(pairs) and all(torch.allclose(stored, actual, rtol=1e-4) for stored, actual in pairs)


class Prepared(Net):
    """Scales its inputs where Lightning lets a module do so."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = 6 * X + 1

    def on_before_batch_transfer(self, batch: list[Tensor], index: int) -> list[Tensor]:
        return [2 * batch[0], batch[1]]

    def on_after_batch_transfer(self, batch: list[Tensor], index: int) -> list[Tensor]:
        return [3 * batch[0] + 1, batch[1]]


class PreparedByData(LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        return LOADER

    val_dataloader = train_dataloader

    def on_after_batch_transfer(self, batch: list[Tensor], index: int) -> list[Tensor]:
        return [6 * batch[0] + 1, batch[1]]


@pytest.mark.parametrize("by_data", [False, True])
def test_batches_are_prepared_as_those_of_training(tmp_path: Path, by_data: bool) -> None:
    model = Net() if by_data else Prepared()
    model.inputs = 6 * X + 1
    options = {"datamodule": PreparedByData()} if by_data else {}
    assert exact(fit(tmp_path, ReestimateBatchNorm(), model=model, **options).validated)


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for i in count():
            yield X[i % 64], X[i % 64].sum(0, keepdim=True)


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"limit_train_batches": 3}, 3),
        ({"max_epochs": -1, "max_steps": 2, "accumulate_grad_batches": 2, "val_check_interval": 4}, 4),
    ],
)
def test_a_loader_without_an_end_is_read_as_far_as_training_reads_it(
    tmp_path: Path, options: dict, batches: int
) -> None:
    callback = ReestimateBatchNorm()
    model = fit(tmp_path, callback, train_dataloaders=DataLoader(Endless(), batch_size=16), **options)
    assert callback.report["net.2"].batches == batches
    assert model.validated
    assert exact(model.validated) == (batches == 4)  # when all of X came once


def test_a_limit_of_ones_own_comes_first(tmp_path: Path) -> None:
    callback = ReestimateBatchNorm(max_batches=2)
    fit(tmp_path, callback, limit_train_batches=3)
    assert callback.report["net.2"].batches == 2


@pytest.mark.parametrize(
    ("callbacks", "options", "message"),
    [
        ([ReestimateBatchNorm()], {"model": Net(norm=False)}, "no BatchNorm with running statistics"),
        ([ReestimateBatchNorm()], {"train_dataloaders": {"a": LOADER, "b": LOADER}}, "has a dict of training loaders"),
        ([ReestimateBatchNorm(), ReestimateBatchNorm(max_batches=1)], {}, "two ReestimateBatchNorm callbacks"),
    ],
)
def test_what_cannot_work_is_refused_before_training(tmp_path, callbacks, options, message) -> None:
    model = options.pop("model", None) or Net()
    with pytest.raises((ValueError, TypeError), match=message):
        fit(tmp_path, *callbacks, model=model, **options)
    assert not model.trained


@pytest.mark.parametrize("workers", [0, 1])
def test_a_validation_in_the_middle_of_an_epoch_leaves_training_the_same_bits(tmp_path: Path, workers: int) -> None:
    found = []
    for callbacks in ([ReestimateBatchNorm()], []):
        loader = DataLoader(DATA, 16, shuffle=True, num_workers=workers, persistent_workers=bool(workers))
        options = {"val_check_interval": 2, "accumulate_grad_batches": 3}
        found.append(fit(tmp_path, *callbacks, train_dataloaders=loader, **options))
    ours, alone = found
    assert len(ours.trained) == len(alone.trained) == 8
    assert all(map(torch.equal, ours.trained, alone.trained))
    assert exact(ours.validated)
    assert not exact(alone.validated)


class Save(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_end(self, trainer: Trainer, model: Net) -> None:
        final = model.net[2].running_var, model.net[0](X).var(0)
        torch.save([*model.validated, final], self.folder / f"{trainer.global_rank}.pt")


def test_two_ranks_pool_their_data_for_the_averaged_weights(tmp_path: Path) -> None:
    callbacks = EMAWeightAveraging(decay=0.8), ReestimateBatchNorm(), Save(tmp_path)
    fit(tmp_path, *callbacks, strategy="ddp_fork", devices=2)
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert len(one) == 2 * 2 + 1  # two epochs of two batches a rank, and the end
    assert exact(one)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(one, two, strict=True))


def test_a_checkpoint_of_a_run_without_the_callback_resumes_with_it(tmp_path: Path) -> None:
    class Keep(Callback):
        def on_train_end(self, trainer: Trainer, model: Net) -> None:
            trainer.save_checkpoint(path)

    path = tmp_path / "old.ckpt"
    first = fit(tmp_path, Keep(), max_epochs=1)
    assert TRAINING not in torch.load(path, weights_only=False)
    model = fit(tmp_path, ReestimateBatchNorm(), ckpt_path=path)
    assert len(model.trained) == 4  # the second epoch
    assert not torch.equal(model.trained[0], first.trained[-1])
    assert exact(model.validated)


def test_a_validation_alone_uses_what_the_model_has(tmp_path: Path) -> None:
    model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(callbacks=[ReestimateBatchNorm()], logger=False, enable_progress_bar=False, accelerator="cpu")
        trainer.validate(model, LOADER, verbose=False)
    assert len(model.validated) == 4
    assert all((stored == 1).all() for stored, _ in model.validated)
