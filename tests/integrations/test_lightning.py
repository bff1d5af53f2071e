"""The Lightning callback, under a real trainer."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import unitvar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations at import
    from lightning.pytorch import LightningModule, Trainer

    from unitvar.integrations.lightning import ReestimateBatchNorm

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
LOADER = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16)


class Net(LightningModule):
    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.fail = fail
        self.trained: Tensor | None = None
        self.validated: list[tuple[Tensor, Tensor]] = []
        self.checkpointed: list[tuple[Tensor | None, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def on_train_batch_end(self, *args: object) -> None:
        self.trained = self.net[2].running_var.clone()

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        if self.fail and not self.trainer.sanity_checking:
            raise RuntimeError("validation broke")
        with torch.no_grad():
            self.validated.append((self.net[2].running_var.clone(), self.net[0](X).var(0)))

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        self.checkpointed.append((self.trained, checkpoint["state_dict"]["net.2.running_var"].clone()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def fit(model: Net, tmp_path, **options) -> ReestimateBatchNorm:
    callback = ReestimateBatchNorm(**options)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=2, callbacks=[callback], default_root_dir=tmp_path, num_sanity_val_steps=1, **quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and the like
        trainer.fit(model, LOADER, LOADER)
    return callback


def test_validation_sees_re_estimated_statistics_and_training_its_own(tmp_path) -> None:
    torch.manual_seed(0)
    model = Net()
    fit(model, tmp_path)
    sanity, *real = model.validated
    assert (sanity[0] == 1).all()
    assert len(real) == 8
    for stored, actual in real:
        torch.testing.assert_close(stored, actual, rtol=1e-4, atol=0)
    assert model.checkpointed
    for trained, saved in model.checkpointed:
        assert torch.equal(trained, saved)


def test_the_end_of_fit_keeps_them(tmp_path) -> None:
    torch.manual_seed(0)
    model = Net()
    callback = fit(model, tmp_path, validation=False, method="sequential")
    assert not torch.equal(model.validated[-1][0], model.validated[-1][1])
    with torch.no_grad():
        torch.testing.assert_close(model.net[2].running_var, model.net[0](X).var(0), rtol=1e-5, atol=0)
    assert isinstance(callback.report, unitvar.BatchNormReport)
    assert callback.report.method == "sequential"


def test_training_is_undisturbed(tmp_path) -> None:
    trained = []
    for validation in (True, False):
        torch.manual_seed(0)
        model = Net()
        fit(model, tmp_path, validation=validation, batches=[X])
        trained.append((model.trained, [p.detach() for p in model.parameters()]))
    assert torch.equal(trained[0][0], trained[1][0])
    assert all(map(torch.equal, trained[0][1], trained[1][1]))


def test_a_validation_that_fails_leaves_the_statistics_of_training(tmp_path) -> None:
    torch.manual_seed(0)
    model = Net(fail=True)
    with pytest.raises(RuntimeError, match="validation broke"):
        fit(model, tmp_path)
    assert torch.equal(model.net[2].running_var, model.trained)
