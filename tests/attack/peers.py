"""What peers promise of BatchNorm re-estimation, tried on ours: the same numbers, or an error with a remedy."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import unitvar
from tests.attack.case import Case
from tests.attack.snapshot import differences, snapshot

__all__ = ["PEERS", "peers"]

BATCHES = list(torch.randn(6, 8, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 2 + 1)


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))


def _statistics(model: nn.Module) -> list[Tensor]:
    return [b.clone() for name, b in model.named_buffers() if "running" in name]


def _close(a: nn.Module, b: nn.Module, rtol: float) -> bool:
    return all(torch.allclose(x, y, rtol=rtol, atol=1e-4) for x, y in zip(_statistics(a), _statistics(b), strict=True))


def _update_bn() -> bool:
    """torch: means are those of update_bn, which averages variances; they lack the spread of the batches' means."""
    ours, theirs = _network(), _network()
    unitvar.reestimate_bn_(ours, BATCHES)
    update_bn(BATCHES, theirs)
    means = [(a, b) for a, b in zip(_statistics(ours)[::2], _statistics(theirs)[::2], strict=True)]
    return all(torch.allclose(a, b, atol=1e-5) for a, b in means) and _close(ours, theirs, 0.1)


def _restores() -> bool:
    """torch: momentum and training flags are as before."""
    model = _network()
    model[1].momentum = 0.37
    model[1].eval()
    unitvar.reestimate_bn_(model, BATCHES)
    return model[1].momentum == 0.37 and not model[1].training and model[4].training


def _fvcore() -> bool:
    """fvcore: precise BN stores the same means, and variances without Bessel's correction, n / (n - 1)."""
    from fvcore.nn.precise_bn import update_bn_stats

    ours, theirs = _network(), _network()
    unitvar.reestimate_bn_(ours, BATCHES)
    update_bn_stats(theirs, BATCHES, num_iters=len(BATCHES))
    for norm, values in ((theirs[1], 6 * 8 * 9), (theirs[4], 6 * 8)):
        norm.running_var.mul_(values / (values - 1))
    return _close(ours, theirs, 1e-4)


def _too_few() -> bool:
    """fvcore: data that end too early are an error. Ours takes what there is, and refuses nothing at all."""
    model = _network()
    before = snapshot(model)
    try:
        unitvar.reestimate_bn_(model, [])
    except ValueError:
        return not differences(before, snapshot(model))
    return False


def _without_layers() -> bool:
    """fvcore, mmengine: a model without BatchNorm is passed over in silence. Ours says that there is nothing to do."""
    try:
        unitvar.reestimate_bn_(nn.Linear(3, 3), [torch.randn(2, 3)])
    except ValueError as error:
        return "no BatchNorm" in str(error)
    return False


def _frozen() -> bool:
    """fvcore, mmengine: layers in eval mode are skipped. Ours skips frozen ones, and names them."""
    model = _network()
    model[1].eval().requires_grad_(False)
    before = _statistics(model[1])
    report = unitvar.reestimate_bn_(model, BATCHES)
    return report.kept == {"1": "frozen"} and all(map(torch.equal, before, _statistics(model[1])))


def _handle() -> bool:
    """AIMET: the old statistics can be had back. Ours is a context manager."""
    model = _network()
    before = snapshot(model)
    with unitvar.reestimated_bn(model, BATCHES):
        changed = differences(before, snapshot(model))
    return bool(changed) and not differences(before, snapshot(model))


PEERS: dict[str, Callable[[], bool]] = {
    "torch update_bn: the same statistics": _update_bn,
    "torch update_bn: momentum and flags": _restores,
    "fvcore precise BN: the same statistics": _fvcore,
    "fvcore precise BN: too few data": _too_few,
    "fvcore, mmengine: a model without BatchNorm": _without_layers,
    "fvcore, mmengine: frozen layers": _frozen,
    "AIMET: the old statistics come back": _handle,
}


def peers() -> Iterator[Case]:
    """Try every case."""
    for name, case in PEERS.items():
        try:
            yield Case(name, case(), (case.__doc__ or "").strip())
        except Exception as error:
            yield Case(name, False, f"{type(error).__name__}: {error}"[:150])
