"""Portable statistics: merged as pooled, blended as with old values, applied all or nothing, saved bit for bit."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import unitvar
from unitvar import BatchNormStatistics


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5),
    )  # fmt: skip


def images(*sizes: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 1, 7, 7, generator=generator) * (1 + i) + i for i, n in enumerate(sizes)]


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items() if "running" in name}


@settings(deadline=None, max_examples=15)
@given(st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=3), min_size=2, max_size=4))
def test_merged_is_what_one_call_over_all_batches_gives(sites: list[list[int]]) -> None:
    model, parts = network(), [images(*sizes, seed=i) for i, sizes in enumerate(sites)]
    merged, *others = (unitvar.bn_statistics(model, part) for part in parts)
    merged = merged.merge(*others)
    pooled = unitvar.bn_statistics(model, [batch for part in parts for batch in part])
    assert merged.batches == pooled.batches
    for one, two in zip(merged, pooled, strict=True):
        assert (one.name, one.values, one.examples) == (two.name, two.values, two.examples)
        for what in ("mean", "var"):
            torch.testing.assert_close(getattr(one, what), getattr(two, what), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(one.standard_error, two.standard_error, rtol=1e-6, atol=1e-9, equal_nan=True)


def test_the_model_is_unchanged_until_statistics_are_applied_and_then_as_re_estimated() -> None:
    model, other, data = network(), network(), images(8, 5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = unitvar.bn_statistics(model, data, stats="var", method="sequential")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    report, expected = found.apply_(model), unitvar.reestimate_bn_(other, data, stats="var", method="sequential")
    assert all(map(torch.equal, statistics_of(model).values(), statistics_of(other).values()))
    assert str(report) == str(expected)
    assert (model[1].running_mean == 0).all()


@pytest.mark.parametrize("unit", ["values", "examples"])
def test_blending_pools_with_the_values_that_the_old_statistics_came_from(unit: str) -> None:
    model, old, new = network(), images(8, 8), images(6, seed=1)
    first = unitvar.bn_statistics(model, old)
    first.apply_(model)
    # The first layer's old statistics come from 16 images of 25 positions.
    weight = {"values": 16 * 25, "examples": 16}[unit]
    blended = unitvar.bn_statistics(model, new).blend(model, weight, unit=unit)
    pooled = unitvar.bn_statistics(model, old + new)
    assert blended["1"].values == pooled["1"].values
    torch.testing.assert_close(blended["1"].mean, pooled["1"].mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(blended["1"].var, pooled["1"].var, rtol=1e-6, atol=0)
    if unit == "examples":
        assert [layer.examples for layer in blended] == [22, 22, 22]
        assert [layer.values for layer in blended] == [22 * 25, 22 * 9, 22]
    else:
        assert [layer.values - n for layer, n in zip(blended, (6 * 25, 6 * 9, 6), strict=True)] == 3 * [weight]


def test_no_weight_is_the_target_and_a_large_one_is_the_source() -> None:
    model, data = network(), images(6)
    found = unitvar.bn_statistics(model, data)
    assert found.blend(model, 0) is found
    for layer in found.blend(model, 10**12):
        torch.testing.assert_close(layer.mean, torch.zeros_like(layer.mean), rtol=0, atol=1e-6)
        torch.testing.assert_close(layer.var, torch.ones_like(layer.var), rtol=1e-6, atol=0)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(("weight", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_prior_counts_a_whole_number(weight: object, error: type[Exception]) -> None:
    model = network()
    with pytest.raises(error, match="weight="):
        unitvar.bn_statistics(model, images(4)).blend(model, weight)
    with pytest.raises(ValueError, match="'values', 'examples'"):
        unitvar.bn_statistics(model, images(4)).blend(model, 1, unit="pixels")


def test_selected_layers_are_applied_and_no_others() -> None:
    model, data = network(), images(6)
    found = unitvar.bn_statistics(model, data)
    chosen = found.select("[15]")
    assert [layer.name for layer in chosen] == ["1", "5"]
    report = chosen.apply_(model)
    assert dict(report.kept) == {"10": "not selected"}
    assert (model[10].running_var == 1).all()
    torch.testing.assert_close(model[5].running_var.double(), found["5"].var, rtol=1e-6, atol=0)
    with pytest.raises(KeyError, match="not selected"):
        chosen["10"]
    with pytest.raises(ValueError, match=r"'layer\*' matches none of '1', '5', '10'"):
        found.select("1", "layer*")
    with pytest.raises(ValueError, match="needs at least one pattern"):
        found.select()


def test_a_model_without_one_of_the_layers_or_with_another_width_stays_as_it_was() -> None:
    found = unitvar.bn_statistics(network(), images(6))
    for last, message in ((nn.Identity(), "named '10'; it has '1', '5'"), (nn.BatchNorm1d(7), "'10' has 7 channels")):
        other = network()
        other[10] = last
        before = statistics_of(other)
        with pytest.raises(ValueError, match=message):
            found.apply_(other)
        assert all(torch.equal(value, before[name]) for name, value in statistics_of(other).items())


def test_statistics_that_one_layer_cannot_hold_leave_all_as_they_were() -> None:
    model = network()
    found = unitvar.bn_statistics(model, [1e4 * x for x in images(6, 6)])
    model[10].half()
    found["10"].moments.mean.fill_(1e6)
    before = statistics_of(model)
    with pytest.raises(ValueError, match="float16"):
        found.apply_(model)
    assert all(torch.equal(value, before[name]) for name, value in statistics_of(model).items())


@pytest.mark.usefixtures("untyped")
def test_only_the_same_kind_merges() -> None:
    model, data = network(), images(6, 5)
    found = unitvar.bn_statistics(model, data)
    with pytest.raises(ValueError, match="stats='both' and stats='var'"):
        found.merge(unitvar.bn_statistics(model, data, stats="var"))
    with pytest.raises(TypeError, match="not a list"):
        found.merge([found])
    wider = network()
    wider[9], wider[10] = nn.Linear(6, 7), nn.BatchNorm1d(7)
    with pytest.raises(ValueError, match="'10' has 5 channels here and 7 there"):
        found.merge(unitvar.bn_statistics(wider, data))


def test_a_layer_that_one_site_does_not_reach_is_pooled_over_the_others() -> None:
    model, data = network(), images(6, 5)
    a, b = (unitvar.bn_statistics(model, [batch]) for batch in data)
    merged = a.select("1", "5").merge(b)
    assert merged["10"].values == 5
    assert merged["1"].values == 11 * 25
    assert not merged.kept


def test_saved_and_loaded_are_the_same_bits(tmp_path: Path) -> None:
    model = network()
    found = unitvar.bn_statistics(model, images(6, 5, 4)).select("1", "10")
    found.save(tmp_path / "statistics.safetensors")
    loaded = BatchNormStatistics.load(tmp_path / "statistics.safetensors")
    assert loaded.rows == found.rows
    assert (loaded.stats, loaded.method, loaded.batches, loaded.kept) == ("both", "one-pass", 3, {"5": "not selected"})
    for one, two in zip(loaded, found, strict=True):
        assert torch.equal(one.mean, two.mean)
        assert torch.equal(one.var, two.var)
        assert torch.equal(one.standard_error, two.standard_error)
    assert torch.equal(loaded.merge(found)["1"].mean, found.merge(loaded)["1"].mean)


def test_a_file_of_something_else_and_a_missing_library_are_named(tmp_path: Path, monkeypatch) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(ValueError, match=r"weights.safetensors' cannot be read as BatchNorm statistics"):
        BatchNormStatistics.load(path)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r"unitvar\[safetensors\]"):
        unitvar.bn_statistics(network(), images(4)).save(path)
