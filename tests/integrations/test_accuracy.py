"""What averaged weights are worth on the digits: with averaged statistics, with update_bn's, and with ours."""

import warnings
from statistics import mean

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from unitvar_reproduction import data
from unitvar_reproduction.data.images import Images
from unitvar_reproduction.networks import DenseNet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # other people's deprecations at import
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import EMAWeightAveraging

    from unitvar.integrations.lightning import ReestimateBatchNorm


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = DenseNet(13, 8, 0.5, channels=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def judged(model: nn.Module, test: Images) -> tuple[float, float]:
    """Return error and log loss."""
    with torch.no_grad():
        out = model.eval()(test.images)
    return (out.argmax(1) != test.labels).float().mean().item(), nn.functional.cross_entropy(out, test.labels).item()


def averaged(seed: int) -> dict[str, tuple[float, float]]:
    """Train once with an exponential average, and judge it with each kind of statistics."""
    training, test = data.digits(seed)
    loader = DataLoader(TensorDataset(training.images, training.labels), 64, shuffle=True)
    torch.manual_seed(seed)
    model, callback = Classifier(), ReestimateBatchNorm()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and the like
        callbacks = [callback, EMAWeightAveraging(decay=0.9)]
        Trainer(max_epochs=6, callbacks=callbacks, logger=False, accelerator="cpu", **quiet).fit(model, loader)
    found = {"ours": judged(model, test)}
    for layer in callback.report:  # what Lightning's average alone leaves
        norm = model.get_submodule(layer.name)
        norm.running_mean, norm.running_var = layer.old_mean.clone(), layer.old_var.clone()
    found["averaged"] = judged(model, test)
    update_bn(loader, model.train())
    return found | {"update_bn": judged(model, test)}


def test_re_estimation_beats_averaged_and_updated_statistics() -> None:
    """On three networks of six epochs with dropout 0.5, with room: errors are near 3.1, 5.8 and 5.4 %."""
    runs = [averaged(seed) for seed in range(3)]
    error, loss = ({name: mean(run[name][i] for run in runs) for name in runs[0]} for i in range(2))
    for other in ("averaged", "update_bn"):
        assert error["ours"] < 0.8 * error[other]
        assert loss["ours"] < 0.8 * loss[other]
        assert all(run["ours"][1] < run[other][1] for run in runs)
    assert error["ours"] < 0.05
