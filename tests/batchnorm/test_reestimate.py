"""Laws of re-estimation: what the statistics are, and that they are those of evaluation."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import unitvar
from unitvar.batchnorm.moments import batch_moments


def mlp(dropout: float = 0.3, depth: int = 6, width: int = 64, norm: type[nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    blocks = [(nn.Linear(width, width), nn.Dropout(dropout), norm(width), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*(layer for block in blocks for layer in block))


def norms(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def actual(model: nn.Module, batches: list[Tensor]) -> dict[nn.Module, tuple[Tensor, Tensor]]:
    """Mean and unbiased variance of what reaches each BatchNorm in evaluation, by brute force."""
    seen: dict[nn.Module, list[Tensor]] = {m: [] for m in norms(model)}
    hooks = [m.register_forward_pre_hook(lambda m, args: seen[m].append(args[0].double())) for m in seen]
    was = model.training
    model.eval()
    with torch.no_grad():
        for batch in batches:
            model(batch)
    model.train(was)
    for hook in hooks:
        hook.remove()
    flat = {m: torch.cat([x.movedim(1, 0).flatten(1) for x in xs], 1) for m, xs in seen.items() if xs}
    return {m: (x.mean(1), x.var(1)) for m, x in flat.items()}


def test_first_layer_equals_brute_force_and_all_layers_do_in_one_batch() -> None:
    torch.manual_seed(0)
    model, data = mlp(), torch.randn(512, 64)
    unitvar.reestimate_bn_(model, data.split(100))
    first = norms(model)[0]
    mean, var = actual(model, [data])[first]
    torch.testing.assert_close(first.running_mean.double(), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(first.running_var.double(), var, rtol=1e-6, atol=0)
    unitvar.reestimate_bn_(model, [data])
    for norm, (mean, var) in actual(model, [data]).items():
        # Biased normalisation while collecting, unbiased after: 1/512 a layer.
        torch.testing.assert_close(norm.running_mean.double(), mean, rtol=0.02, atol=0.02)
        torch.testing.assert_close(norm.running_var.double(), var, rtol=0.02, atol=0)


def test_running_var_is_unbiased_as_torch_has_it() -> None:
    ours, theirs, x = nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=1.0), torch.randn(5, 3)
    unitvar.reestimate_bn_(ours, [x])
    theirs(x)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.randoms(use_true_random=False), st.floats(-100, 100))
def test_first_layer_does_not_depend_on_split_or_order(sizes, shuffle, loc: float) -> None:
    data = torch.linspace(-1, 1, 3 * (1 + sum(sizes))).sin().view(-1, 3).double() + loc
    parts = list(data.split([1, *sizes]))
    whole, split = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    shuffle.shuffle(parts)
    unitvar.reestimate_bn_(whole, [data])
    unitvar.reestimate_bn_(split, parts)
    torch.testing.assert_close(split.running_mean, whole.running_mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(split.running_var, whole.running_var, rtol=1e-8, atol=1e-10)


def test_uneven_batches_are_weighted_by_their_values_in_images_of_any_size() -> None:
    norm = nn.BatchNorm2d(2)
    batches = [torch.randn(3, 2, 4, 4), torch.randn(1, 2, 9, 5) + 4, torch.randn(7, 2, 1, 2)]
    report = unitvar.reestimate_bn_(norm, batches)
    values = torch.cat([b.double().movedim(1, 0).flatten(1) for b in batches], 1)
    torch.testing.assert_close(norm.running_var.double(), values.var(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(norm.running_mean.double(), values.mean(1), rtol=1e-6, atol=1e-7)
    assert report[""].values == values.shape[1]


def test_six_deep_stored_variance_is_actual_with_dropout_off_and_update_bn_leaves_it_far_off() -> None:
    torch.manual_seed(0)
    model, data = mlp(width=128), torch.randn(20, 256, 128)
    for _ in range(5):
        for batch in data:
            model(batch)
    last = norms(model)[-1]

    def off() -> float:
        return float((last.running_var.double() / actual(model, list(data))[last][1]).mean())

    trained = off()
    update_bn(list(data), model)
    updated = off()
    unitvar.reestimate_bn_(model, list(data))
    assert off() == pytest.approx(1, abs=0.03)
    assert 10 < trained < 20
    assert 10 < updated < 20


def test_mean_1000_sigma_001_stays_positive_and_right_to_one_percent() -> None:
    torch.manual_seed(0)
    norm, batches = nn.BatchNorm1d(16), [torch.randn(64, 16) * 0.01 + 1000 for _ in range(20)]
    unitvar.reestimate_bn_(norm, batches)
    data = torch.cat(batches).double()
    assert (norm.running_var > 0).all()
    torch.testing.assert_close(norm.running_var.double(), data.var(0), rtol=0.01, atol=0)
    assert ((norm.running_mean.double() - data.mean(0)).abs() < 1e-4).all()


@pytest.mark.parametrize("method", ["one-pass", "sequential"])
def test_dropout_rate_zero_changes_nothing_beyond_the_estimate(method: str) -> None:
    torch.manual_seed(0)
    data = list(torch.randn(4, 32, 64))
    with_rate, without = mlp(0.5), mlp(0.0)
    without.load_state_dict(with_rate.state_dict())
    for model in (with_rate, without):
        unitvar.reestimate_bn_(model, data, method=method)
    for a, b in zip(norms(with_rate), norms(without), strict=True):
        assert torch.equal(a.running_mean, b.running_mean)
        assert torch.equal(a.running_var, b.running_var)


def test_one_pass_is_what_batch_statistics_give() -> None:
    """Deeper layers: the pooled moments under BatchNorm's own training-mode normalisation."""
    torch.manual_seed(0)
    model, data = mlp(0.0, depth=3), list(torch.randn(5, 32, 64))
    unitvar.reestimate_bn_(model, data)
    seen: list[Tensor] = []
    last = norms(model)[-1]
    stored = last.running_mean.clone(), last.running_var.clone()
    last.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    for batch in data:
        model(batch)
    pooled = batch_moments(torch.cat(seen))
    torch.testing.assert_close(stored[0].double(), pooled.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stored[1].double(), pooled.unbiased, rtol=1e-4, atol=0)


@pytest.mark.parametrize("method", ["one-pass", "sequential"])
def test_stats_var_keeps_the_means(method: str) -> None:
    torch.manual_seed(0)
    model, data = mlp(), list(torch.randn(4, 32, 64))
    for batch in data:
        model(batch)
    means = [n.running_mean.clone() for n in norms(model)]
    report = unitvar.reestimate_bn_(model, data, stats="var", method=method)
    assert all(torch.equal(n.running_mean, m) for n, m in zip(norms(model), means, strict=True))
    _, var = actual(model, data)[norms(model)[0]]
    torch.testing.assert_close(norms(model)[0].running_var.double(), var, rtol=1e-6, atol=0)
    assert all((layer.shift == 0).all() for layer in report)


def test_a_batch_of_one_value_is_normalised_with_what_was_pooled_so_far() -> None:
    torch.manual_seed(0)
    model, data, single = mlp(0.0, depth=2), torch.randn(64, 64), torch.randn(1, 64)
    unitvar.reestimate_bn_(model, [data, single])
    first, second = norms(model)
    with torch.no_grad():
        z = model[0](data)
        rest = model[3:5]
        one = (model[0](single) - z.mean(0)) / (z.var(0, correction=0) + first.eps).sqrt()
        many = (z - z.mean(0)) / (z.var(0, correction=0) + first.eps).sqrt()
        values = torch.cat((rest(many), rest(one))).double()
    torch.testing.assert_close(second.running_mean.double(), values.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(second.running_var.double(), values.var(0), rtol=1e-4, atol=0)


def test_context_gives_new_statistics_inside_and_old_bits_after() -> None:
    torch.manual_seed(0)
    model, data = mlp(), list(torch.randn(4, 32, 64))
    model(data[0])
    before = {k: v.clone() for k, v in model.state_dict().items()}
    identity = [id(b) for b in model.buffers()]
    with unitvar.reestimated_bn(model, data, method="sequential") as report:
        for norm, (_, var) in actual(model, data).items():
            torch.testing.assert_close(norm.running_var.double(), var, rtol=1e-5, atol=0)
        assert len(report.layers) == 6
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with pytest.raises(RuntimeError, match="shapes"), unitvar.reestimated_bn(model, data):
        model(torch.ones(3, 3))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [id(b) for b in model.buffers()] == identity


def test_both_functions_take_the_same_options() -> None:
    in_place, context = (inspect.signature(f).parameters for f in (unitvar.reestimate_bn_, unitvar.reestimated_bn))
    assert list(in_place.values()) == list(context.values())
