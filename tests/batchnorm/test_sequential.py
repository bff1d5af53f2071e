"""One layer after the other: exact at every depth, whatever the batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from tests.batchnorm.test_reestimate import actual, mlp, norms


def assert_stored_is_actual(model: nn.Module, batches: list[Tensor], tolerance: float = 1e-5) -> None:
    for norm, (mean, var) in actual(model, batches).items():
        sigma = var.sqrt()
        assert float(((norm.running_mean.double() - mean) / sigma).abs().max()) < tolerance
        assert float((norm.running_var.double() / var - 1).abs().max()) < tolerance


@pytest.mark.parametrize("size", [1, 2, 64])
def test_stored_equals_actual_in_eval_at_every_layer(size: int) -> None:
    torch.manual_seed(0)
    model, data = mlp(0.5), torch.randn(128, 64)
    unitvar.reestimate_bn_(model, data.split(size), method="sequential")
    assert_stored_is_actual(model, list(data.split(size)))


def test_convolutions_too() -> None:
    torch.manual_seed(0)
    block = [nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.5)]
    model = nn.Sequential(
        *block, nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    )
    data = list(torch.randn(6, 2, 3, 12, 12))
    unitvar.reestimate_bn_(model, data, method="sequential")
    assert_stored_is_actual(model, data)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_no_layer_depends_on_split_or_order(sizes, shuffle) -> None:
    torch.manual_seed(1)
    model = mlp(0.3, depth=3, width=4).double()
    data = torch.randn(2 + sum(sizes), 4, dtype=torch.float64).sort(0).values  # as sorted by class
    unitvar.reestimate_bn_(model, [data], method="sequential")
    whole = [(n.running_mean.clone(), n.running_var.clone()) for n in norms(model)]
    parts = list(data.split([2, *sizes]))
    shuffle.shuffle(parts)
    unitvar.reestimate_bn_(model, parts, method="sequential")
    for norm, (mean, var) in zip(norms(model), whole, strict=True):
        torch.testing.assert_close(norm.running_mean, mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(norm.running_var, var, rtol=1e-9, atol=1e-12)


class Branches(nn.Module):
    """Registered in the opposite of execution order; two branches, one layer that only some batches reach."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.right, self.left, self.first, self.rare = (nn.BatchNorm1d(4) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        if x.shape[0] > 3:
            x = self.rare(x) ** 2
        return self.last(self.left(x.sin()) * self.right(x * 3))


def test_execution_order_counts_and_rare_layers_are_found() -> None:
    torch.manual_seed(0)
    model, data = Branches(), [torch.randn(n, 4) for n in (3, 2, 8, 3, 5)]
    report = unitvar.reestimate_bn_(model, data, method="sequential")
    assert_stored_is_actual(model, data)
    assert {layer.name for layer in report} == {"first", "rare", "left", "right", "last"}
    assert report["rare"].batches == 2


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.between, self.after = (nn.BatchNorm1d(4) for _ in range(3))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.shared(self.between(self.linear(self.shared(x)).relu()) * 2 + 1).relu())


def test_a_shared_layer_is_pooled_and_the_others_stay_exact() -> None:
    torch.manual_seed(0)
    model, data = Shared(), list(torch.randn(8, 16, 4))
    report = unitvar.reestimate_bn_(model, data, method="sequential")
    assert report["shared"].values == 2 * 8 * 16
    truth = actual(model, data)
    for norm in (model.between, model.after):
        torch.testing.assert_close(norm.running_var.double(), truth[norm][1], rtol=1e-5, atol=0)
    ratio = model.shared.running_var.double() / truth[model.shared][1]
    assert ((ratio - 1).abs() < 0.2).all()


def test_a_one_shot_iterator_raises_before_it_is_touched() -> None:
    batches = iter([torch.randn(4, 64)])
    with pytest.raises(ValueError, match="read only once"):
        unitvar.reestimate_bn_(mlp(), batches, method="sequential")
    assert next(batches).shape == (4, 64)


class Shrinking:
    """Pretends to be re-iterable."""

    def __init__(self) -> None:
        self.left = 3

    def __iter__(self):
        self.left -= 1
        return iter([torch.randn(8, 64)] * self.left)


def test_an_iterable_that_runs_dry_is_an_error_and_leaves_the_model() -> None:
    model = mlp()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match="same batches on every pass"):
        unitvar.reestimate_bn_(model, Shrinking(), method="sequential")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_shuffling_and_augmentation_repeat_in_every_sweep() -> None:
    class Augmented(torch.utils.data.Dataset):
        data = torch.randn(24, 64)

        def __len__(self) -> int:
            return 24

        def __getitem__(self, i: int) -> Tensor:
            return self.data[i] + torch.randn(64)

    seen: list[list[Tensor]] = []

    class Loader:
        def __iter__(self):
            seen.append([])
            for batch in torch.utils.data.DataLoader(Augmented(), batch_size=4, shuffle=True):
                seen[-1].append(batch)
                yield batch

    model = mlp(depth=3)
    unitvar.reestimate_bn_(model, Loader(), method="sequential")
    assert len(seen) == 3
    assert all(torch.equal(torch.cat(s), torch.cat(seen[0])) for s in seen)
    assert_stored_is_actual(model, seen[0])


def test_max_batches_and_tolerance_hold_for_every_sweep() -> None:
    torch.manual_seed(0)
    model, data = mlp(depth=3), list(torch.randn(12, 16, 64))
    assert unitvar.reestimate_bn_(model, data, method="sequential", max_batches=3).batches == 3
    assert_stored_is_actual(model, data[:3])
    assert unitvar.reestimate_bn_(model, data, method="sequential", tolerance=1e9).batches == 5
    assert_stored_is_actual(model, data[:5])
