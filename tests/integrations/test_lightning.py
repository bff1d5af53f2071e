"""The Lightning callbacks, under a real trainer."""

import csv
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import unitvar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations at import
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger

    from unitvar.integrations.lightning import TRAINING, InitializeWeights, ReestimateBatchNorm, WatchVariance

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
LOADER = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16)


class Net(LightningModule):
    def __init__(self, fail: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.fail = fail
        self.trained: Tensor | None = None
        self.validated: list[tuple[Tensor, Tensor]] = []
        self.checkpointed: list[tuple[Tensor | None, ...]] = []

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
        saved = checkpoint["state_dict"]["net.2.running_var"].clone()
        kept = checkpoint[TRAINING]["net.2.running_var"].clone() if TRAINING in checkpoint else None
        if self.validated:
            self.checkpointed.append((self.trained, kept, saved, self.validated[-1][0]))

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
    for trained, kept, saved, validated in model.checkpointed:
        assert torch.equal(trained, kept)
        assert torch.equal(saved, validated)


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


class Parts(Net):
    """Calls a part of itself, never itself."""

    def __init__(self) -> None:
        super().__init__()
        self.example_input_array = X

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])


def run(model: LightningModule, tmp_path, *callbacks: Callback, **options: object) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 2}
    trainer = Trainer(callbacks=list(callbacks), logger=CSVLogger(tmp_path), default_root_dir=tmp_path, **quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and the like
        trainer.fit(model, LOADER, **options)
    return trainer


def test_weights_are_initialised_before_fit_and_not_after_a_resume(tmp_path) -> None:
    model, by_hand = Parts(), Parts()
    expected = unitvar.initialize_(by_hand, X, generator=torch.Generator().manual_seed(0))
    started: list[Tensor] = []
    model.on_train_start = lambda: started.append(model.net[0].weight.detach().clone())
    callback = InitializeWeights(generator=torch.Generator().manual_seed(0))
    path = tmp_path / "last.ckpt"
    run(model, tmp_path, callback).save_checkpoint(path)
    assert torch.equal(started[0], by_hand.net[0].weight)
    assert [layer.name for layer in callback.plan.layers] == [layer.name for layer in expected.layers]
    resumed = Parts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(resumed, tmp_path, InitializeWeights(), ckpt_path=path)
    assert torch.equal(resumed.net[0].weight, model.net[0].weight)
    with pytest.raises(ValueError, match="example_input_array, which is None"):
        run(Net(), tmp_path, InitializeWeights())


def test_a_module_that_calls_its_parts_is_watched_and_logged(tmp_path) -> None:
    torch.manual_seed(0)
    watched, alone = Parts(), Parts()
    alone.load_state_dict(watched.state_dict())
    seen: list[float] = []
    watched.net[0].register_forward_hook(lambda module, args, z: seen.append(z.square().mean().item()))
    torch.manual_seed(1)
    callback = WatchVariance(every=3)
    trainer = run(watched, tmp_path, callback)
    torch.manual_seed(1)
    run(alone, tmp_path)
    assert all(map(torch.equal, watched.parameters(), alone.parameters()))
    rows = [row for row in callback.history.rows if row["name"] == "net.0.weight"]
    assert [row["step"] for row in rows] == [0, 3, 6]
    assert [row["variance"] for row in rows] == [pytest.approx(seen[i], rel=1e-5) for i in (0, 3, 6)]
    assert all(row["gradient"] > 0 and row["update_ratio"] > 0 for row in rows)
    with open(f"{trainer.logger.log_dir}/metrics.csv", encoding="utf-8") as file:
        logged = [line for line in csv.DictReader(file) if line.get("unitvar/update_ratio/net.0.weight")]
    assert [int(line["step"]) for line in logged] == [0, 3, 6]
