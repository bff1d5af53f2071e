"""The cases for BatchNorm in peers' own tests, tried on ours: the same numbers, or an error with a remedy."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

import unitvar
from tests.attack.case import Case
from tests.attack.snapshot import differences, snapshot

__all__ = ["PEERS", "peers"]

BATCHES = list(torch.randn(6, 8, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 2 + 1)


class Peer(NamedTuple):
    """A case of a peer: whose, what it tests, what ours does, and whether it does."""

    peer: str
    case: str
    ours: str
    check: Callable[[], bool]


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))


def _dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))


def _statistics(model: nn.Module) -> list[Tensor]:
    return [b.clone() for name, b in model.named_buffers() if "running" in name]


def _close(a: nn.Module, b: nn.Module, rtol: float) -> bool:
    return all(torch.allclose(x, y, rtol=rtol, atol=1e-4) for x, y in zip(_statistics(a), _statistics(b), strict=True))


def _refuses(model: nn.Module, batches: object, word: str, **options: object) -> bool:
    before = snapshot(model)
    try:
        unitvar.reestimate_bn_(model, batches, **options)  # type: ignore[arg-type]
    except ValueError as error:
        return word in str(error) and not differences(before, snapshot(model))
    return False


def _population() -> bool:
    """Means, and variances of all values together, behind a dense layer and behind a convolution."""
    ok = []
    for model, x in ((_dense(), torch.rand(100, 5)), (_network(), torch.rand(100, 3, 5, 5))):
        unitvar.reestimate_bn_(model, x.split(5))
        before = model[0](x).detach().transpose(0, 1).flatten(1)
        ok += [torch.allclose(model[1].running_mean, before.mean(1), atol=1e-6)]
        ok += [torch.allclose(model[1].running_var, before.var(1), rtol=1e-5)]
    return all(ok)


def _update_bn() -> bool:
    """update_bn averages the variances of batches, without the spread of their means: 10 % here."""
    ours, theirs = _network(), _network()
    unitvar.reestimate_bn_(ours, BATCHES)
    update_bn(BATCHES, theirs)
    means = zip(_statistics(ours)[::2], _statistics(theirs)[::2], strict=True)
    return all(torch.allclose(a, b, atol=1e-5) for a, b in means) and _close(ours, theirs, 0.1)


def _loaders() -> bool:
    x, y = torch.rand(100, 5), torch.rand(100)
    found = []
    for data in (TensorDataset(x), TensorDataset(x, y)):
        model = _dense()
        unitvar.reestimate_bn_(model, DataLoader(data, batch_size=5))
        found.append(_statistics(model))
    return all(map(torch.equal, *found))


def _again() -> bool:
    one, two = _network(), _network()
    nn.init.constant_(two[1].running_mean, 7.0)
    nn.init.constant_(two[4].running_var, 7.0)
    for model in (one, two):
        unitvar.reestimate_bn_(model, BATCHES)
    return all(map(torch.equal, _statistics(one), _statistics(two)))


def _restores() -> bool:
    model = _network()
    model[1].momentum = 0.37
    model[1].eval()
    unitvar.reestimate_bn_(model, BATCHES)
    return model[1].momentum == 0.37 and not model[1].training and model[4].training


def _dimensions() -> bool:
    ok = []
    for make, shape in (
        (nn.BatchNorm1d, (16, 8, 24)), (nn.BatchNorm2d, (16, 8, 12, 8)), (nn.BatchNorm3d, (16, 8, 4, 6, 3))
    ):  # fmt: skip
        norm, batches = make(8), list(torch.randn(8, *shape))
        weight = norm.weight.detach().clone()
        unitvar.reestimate_bn_(norm, itertools.cycle(batches), max_batches=80)
        values = torch.stack(batches).movedim(2, 0).flatten(1)
        count = 10 * values.shape[1]
        var = values.var(1, correction=0) * count / (count - 1)
        ok += [torch.allclose(norm.running_mean, values.mean(1), atol=1e-6), torch.allclose(norm.running_var, var)]
        ok += [torch.equal(norm.weight, weight)]
    return all(ok)


def _fvcore() -> bool:
    from fvcore.nn.precise_bn import update_bn_stats

    ours, theirs = _network(), _network()
    unitvar.reestimate_bn_(ours, BATCHES)
    update_bn_stats(theirs, BATCHES, num_iters=len(BATCHES))
    for norm, values in ((theirs[1], 6 * 8 * 9), (theirs[4], 6 * 8)):
        norm.running_var.mul_(values / (values - 1))
    return _close(ours, theirs, 1e-4)


def _too_few() -> bool:
    norm = nn.BatchNorm2d(3)
    report = unitvar.reestimate_bn_(norm, itertools.repeat(BATCHES[0], 10), max_batches=20)
    return report.batches == 10 and "10 batches" in repr(report) and _refuses(_network(), [], "empty")


def _frozen() -> bool:
    model = _network()
    model[1].eval().requires_grad_(False)
    before = _statistics(model[1])
    report = unitvar.reestimate_bn_(model, BATCHES)
    return report.kept == {"1": "frozen"} and all(map(torch.equal, before, _statistics(model[1])))


def _between_steps() -> bool:
    """A loop in the middle of a shuffled loader goes on with the batches it would have had."""

    def order(interrupted: bool) -> list[float]:
        torch.manual_seed(1)
        norm = nn.BatchNorm1d(1)
        loader = DataLoader(TensorDataset(torch.arange(12.0)[:, None]), batch_size=2, shuffle=True)
        seen = []
        for _ in range(2):
            for step, (x,) in enumerate(loader):
                seen += x.flatten().tolist()
                if interrupted and step == 2:
                    unitvar.reestimate_bn_(norm, loader)
        return seen

    return order(False) == order(True)


def _one_image() -> bool:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3)), torch.randn(1, 3, 8, 8)
    unitvar.reestimate_bn_(model, DataLoader(list(x)))
    mean, var = model[0].running_mean, model[0].running_var
    return torch.allclose(mean, x.mean((0, 2, 3)), atol=1e-6) and torch.allclose(var, x.var((0, 2, 3)))


def _handle() -> bool:
    model = _network()
    before = snapshot(model)
    with unitvar.reestimated_bn(model, BATCHES):
        changed = {key.partition(":")[0].rpartition(".")[2] for key in differences(before, snapshot(model))}
    return changed == {"running_mean", "running_var"} and not differences(before, snapshot(model))


def _quantised() -> bool:
    """Fake-quantised inputs are what is measured; ranges and scales of the quantisers do not move."""
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    torch.manual_seed(0)
    quantise = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=7)
    model = nn.Sequential(quantise, nn.BatchNorm2d(3))
    model(BATCHES[0])
    before = {name: b.clone() for name, b in quantise.named_buffers()}
    unitvar.reestimate_bn_(model, BATCHES)
    quantise.disable_observer()
    expected = torch.cat([quantise(batch) for batch in BATCHES]).transpose(0, 1).flatten(1)
    same = all(torch.equal(b, before[name]) for name, b in quantise.named_buffers() if name != "observer_enabled")
    return same and torch.allclose(model[1].running_mean, expected.mean(1), rtol=0.05)


PEERS: tuple[Peer, ...] = (
    Peer(
        "torch", "`update_bn`: a dense and a convolutional network", "the mean and variance of all values", _population
    ),
    Peer(
        "torch",
        "`update_bn`: the same numbers",
        "the same means; variances include the spread of the batches' means, which `update_bn` leaves out",
        _update_bn,
    ),
    Peer("torch", "`update_bn`: loaders of `(x,)` and `(x, y)`", "the same bits from both", _loaders),
    Peer("torch", "`update_bn`: statistics that were reset before", "old statistics do not matter, to the bit", _again),
    Peer(
        "torch", "`update_bn`: momentum and flags of a model in eval mode", "both are kept, module by module", _restores
    ),
    Peer(
        "fvcore",
        "BatchNorm1d, 2d and 3d from an endless iterator",
        "the same, with `max_batches`; weights are kept",
        _dimensions,
    ),
    Peer(
        "fvcore", "precise statistics of a network", "the same means; variances by Bessel's correction larger", _fvcore
    ),
    Peer(
        "fvcore",
        "fewer batches than asked for: an error",
        "takes what there is and reports the number; no batch at all is an error",
        _too_few,
    ),
    Peer(
        "fvcore", "layers in eval mode are skipped", "skips frozen ones (no gradients either), and names them", _frozen
    ),
    Peer(
        "mmpretrain",
        "a negative number of samples: an error",
        "an error that names the value",
        lambda: _refuses(_network(), BATCHES, "max_batches=-1", max_batches=-1),
    ),
    Peer(
        "mmpretrain",
        "a model that is one BatchNorm",
        "works",
        lambda: bool(unitvar.reestimate_bn_(nn.BatchNorm2d(3), BATCHES).layers),
    ),
    Peer(
        "mmpretrain",
        "GroupNorm instead of BatchNorm: passed over",
        "an error: there is nothing to re-estimate",
        lambda: _refuses(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), BATCHES, "no BatchNorm"),
    ),
    Peer(
        "mmpretrain",
        "no norm at all: passed over",
        "an error: there is nothing to re-estimate",
        lambda: _refuses(nn.Sequential(nn.Conv2d(3, 4, 3)), BATCHES, "no BatchNorm"),
    ),
    Peer(
        "mmpretrain", "in the middle of an epoch", "the loop over the same loader goes on undisturbed", _between_steps
    ),
    Peer("AIMET", "a loader of one image", "its mean and unbiased variance", _one_image),
    Peer(
        "AIMET",
        "a handle that puts the old statistics back",
        "a context manager; nothing else changes meanwhile",
        _handle,
    ),
    Peer(
        "AIMET",
        "quantised models: encodings are not updated",
        "quantised inputs are measured; observers are put back",
        _quantised,
    ),
)


def peers() -> Iterator[Case]:
    """Try every case."""
    for peer, case, ours, check in PEERS:
        try:
            yield Case(f"{peer}: {case}", check(), ours)
        except Exception as error:
            yield Case(f"{peer}: {case}", False, f"{type(error).__name__}: {error}"[:150])
