"""Statistics that are set for a while: they know their weights, and leave what others have swapped in alone."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from unitvar.batchnorm.estimated import Estimated

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model(X)
    return model


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Make this process a group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_they_are_set_and_taken_out_again() -> None:
    model = network()
    before = deepcopy(model.state_dict())
    found = Estimated(model, [X])
    with torch.no_grad():
        torch.testing.assert_close(model[2].running_var, model[0](X).var(0), rtol=1e-5, atol=0)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in found.state.items())
    assert {name: value.tolist() for name, value in found.others(model).items()} == {
        name: before[name].tolist() for name in ("2.running_mean", "2.running_var")
    }
    found.undo(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model[2].running_mean.fill_(7.0)
    assert (found.others(model)["2.running_mean"] == 7).all()
    found.undo(model)  # what is there now is not ours
    assert (model[2].running_mean == 7).all()
    found.apply_(model)
    assert torch.equal(model[2].running_mean, found.state["2.running_mean"])


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "3.weight"])
def test_they_belong_to_weights_of_which_every_one_is_the_same(name: str) -> None:
    model = network()
    found = Estimated(model, [X])
    state = model.state_dict() | {"2.running_var": torch.zeros(4)}
    assert found.belongs_to(state)
    changed = state[name].clone()
    changed.view(-1)[0] += 1e-3
    assert not found.belongs_to(state | {name: changed})
    assert not found.belongs_to({key: value for key, value in state.items() if key != name})


@pytest.mark.usefixtures("group")
def test_the_weights_may_be_sharded() -> None:
    model = network()
    fully_shard(model)
    found = Estimated(model, [X])
    assert found.belongs_to(model.state_dict())
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert not found.belongs_to(model.state_dict())
