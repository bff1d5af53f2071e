"""A plan that is saved, loaded and applied elsewhere fills as initialize_ does, or refuses and writes nothing."""

import copy
import json
import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unitvar
from tests.planning.test_fill import DISTRIBUTIONS, same, small
from unitvar.planning.fitting import check_generator
from unitvar.planning.layers import LayerPlan, Layout, Plan


class Tied(nn.Module):
    """A table with a padding row that is also the output layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 16, padding_idx=3)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.hidden(self.table(tokens)).relu())


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4, bias=False))


def saved(plan: Plan, folder: Path) -> Plan:
    plan.save(folder / "plan.json")
    return Plan.load(folder / "plan.json")


def equal(a: Any, b: Any) -> bool:
    """Compare what plans hold; NaN is NaN."""
    if isinstance(a, (Plan, LayerPlan, Layout)):
        return type(a) is type(b) and all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def scrambled(model: nn.Module) -> nn.Module:
    """Copy a model and give all of its weights other values."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.dim() > 1:
                parameter.normal_()
    return other


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_loaded_plan_is_the_plan_and_fills_what_initialize_fills(distribution: str, tmp_path: Path) -> None:
    model, example = small()
    made = unitvar.plan(model, example, distribution=distribution)
    loaded = saved(made, tmp_path)
    assert equal(made, loaded)
    assert str(made) == str(loaded)
    for generator in (None, torch.Generator()):
        models, states = [scrambled(model), scrambled(model)], []
        for target in models:
            torch.manual_seed(5)
            if generator is not None:
                generator.manual_seed(5)
            if target is models[0]:
                assert loaded.apply_(target, generator) is target
            else:
                unitvar.initialize_(target, example, distribution=distribution, generator=generator)
            states.append((torch.get_rng_state(), generator.get_state() if generator else torch.empty(0)))
        assert same(*models)
        assert all(map(torch.equal, *states))


def test_a_plan_from_the_meta_device_fills_as_one_of_real_weights(tmp_path: Path) -> None:
    tokens = torch.randint(12, (4, 7))
    with torch.device("meta"):
        shell = Tied()
    made = saved(unitvar.plan(shell, tokens, embeddings="unit"), tmp_path)
    real = Tied()
    unitvar.initialize_(real, tokens, embeddings="unit", generator=torch.Generator().manual_seed(2))
    shell.to_empty(device="cpu")
    with pytest.raises(ValueError, match=r"head\.weight \(tied to table\.weight\); tie them again"):
        made.apply_(shell)
    shell.head.weight = shell.table.weight
    made.apply_(shell, torch.Generator().manual_seed(2))
    assert same(real, shell)
    assert not shell.table.weight[3].any()


def test_numbers_that_json_lacks_survive(tmp_path: Path) -> None:
    layer = unitvar.plan(mlp(), torch.zeros(2, 6)).layers[0]
    odd = LayerPlan(**{f.name: getattr(layer, f.name) for f in fields(layer)} | {"signal": math.nan, "mean": -math.inf})
    made = Plan(
        (odd,), {"ü": "tied"}, {"aten.x": 2}, math.inf, 3, "mean", "normal", advice=("a",), shifts={"bn": math.inf},
        parameters={"0.weight": (8, 6), "0.bias": (8,)},
    )  # fmt: skip
    assert equal(made, saved(made, tmp_path))
    json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)  # strict JSON


class Named(nn.Module):
    """Put a module under a name, as torch.compile and activation checkpoints do."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.name)(x)


@pytest.mark.parametrize("name", ["_orig_mod", "_checkpoint_wrapped_module"])
def test_wrappers_inside_of_a_model_do_not_matter(name: str) -> None:
    plain = mlp()
    wrapped = nn.Sequential(Named(name, plain[0]), *plain[1:])
    example = torch.randn(3, 6)
    fills = []
    for planned, filled in ((plain, wrapped), (wrapped, plain)):
        unitvar.plan(planned, example).apply_(filled, torch.Generator().manual_seed(1))
        fills.append([p.clone() for p in filled.parameters()])
    assert all(map(torch.equal, *fills))


def frozen() -> nn.Module:
    model = mlp()
    model[0].weight.requires_grad_(False)
    return model


MISFITS = {
    "missing": (lambda: mlp()[:3], r"it lacks 3\.weight\."),
    "another shape": (lambda: nn.Sequential(nn.Linear(6, 9), *mlp()[1:]), r"0\.weight: \(9, 6\), planned \(8, 6\)"),
    "an extra weight": (lambda: mlp().append(nn.Linear(4, 4, bias=False)), r"the plan lacks 4\.weight"),
    "an extra bias": (lambda: nn.Sequential(*mlp()[:3], nn.Linear(8, 4)), r"the plan lacks 3\.bias"),
    "frozen": (frozen, r"fills 0\.weight, which is frozen"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(8), *mlp()[1:]), r"0 has no shape yet"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(case: str) -> None:
    build, message = MISFITS[case]
    model, made = build(), unitvar.plan(mlp(), torch.zeros(2, 6))
    real = [p for p in model.parameters() if not nn.parameter.is_lazy(p)]
    before, state = [p.clone() for p in real], torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        made.apply_(model)
    assert all(map(torch.equal, before, real))
    assert torch.equal(state, torch.get_rng_state())


def test_a_seed_is_not_a_generator() -> None:
    with pytest.raises(TypeError, match=r"generator=3 is not a torch\.Generator or None"):
        check_generator(3)


def without(record: dict[str, Any], *path: Any, value: Any = None) -> str:
    """Write a record with one entry gone, or with another value."""
    place = record
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(record)


BAD = {
    "empty": (lambda r: "", r"Expecting value"),
    "cut off": (lambda r: json.dumps(r)[:-30], r"line 1"),
    "a list": (lambda r: "[1]", r"'format' is not 'unitvar\.plan'"),
    "another file": (lambda r: '{"weights": 3}', r"'format' is not 'unitvar\.plan'"),
    "another version": (lambda r: without(r, "version", value=99), r"version is 99, but this release reads version 1"),
    "no layers": (lambda r: without(r, "layers"), r"the plan has no 'layers'"),
    "no scale": (lambda r: without(r, "layers", 1, "scale"), r"a layer has no 'scale'"),
    "a word for a scale": (lambda r: without(r, "layers", 1, "scale", value="x"), r"'scale' of '3\.weight': 'x'"),
    "a negative scale": (lambda r: without(r, "layers", 1, "scale", value=-1.0), r"scale of '3\.weight' is -1\.0"),
    "NaN for a scale": (lambda r: without(r, "layers", 1, "scale", value="nan"), r"scale of '3\.weight' is nan"),
    "a shape of words": (lambda r: without(r, "layers", 0, "shape", value=["a"]), r"'a' is not a whole number"),
    "another shape": (lambda r: without(r, "layers", 0, "shape", value=[8, 7]), r"not among its 'parameters'"),
    "an unknown bias": (lambda r: without(r, "layers", 0, "biases", value=["b"]), r"a bias of '0\.weight'"),
    "a column too far": (lambda r: without(r, "layers", 0, "layout", "columns", value=[2]), r"layout of '0\.weight'"),
    "a row too far": (lambda r: without(r, "layers", 0, "layout", "zero", value=[8]), r"zero row of '0\.weight'"),
    "an unknown argument": (lambda r: without(r, "layers", 0, "layout", "fill", value={"x": 1}), r"with the keys tra"),
    "a distribution": (lambda r: without(r, "distribution", value="cauchy"), r"'cauchy' is not one of 'sphere'"),
    "a mode": (lambda r: without(r, "mode", value="up"), r"mode='up' is not one of 'forward'"),
    "skipped": (lambda r: without(r, "skipped", value=[1]), r"'skipped': \[1\] is not a mapping"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named_with_its_fault_and_the_remedy(case: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    unitvar.plan(mlp(), torch.zeros(2, 6)).save(path)
    spoil, fault = BAD[case]
    path.write_text(spoil(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(ValueError, match=fault) as caught:
        Plan.load(path)
    assert repr(str(path)) in str(caught.value)
    assert "plan.save(path)" in str(caught.value)


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"plan\.json' cannot be read as a plan"):
        Plan.load(tmp_path / "plan.json")
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        Plan.load(tmp_path / "none.json")
    made = unitvar.plan(mlp(), torch.zeros(2, 6))
    with pytest.raises(FileNotFoundError, match=r"nowhere' is not a folder; create it"):
        made.save(tmp_path / "nowhere" / "plan.json")
    with pytest.raises(IsADirectoryError, match="is a folder; pass the path of a file"):
        made.save(tmp_path)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["no space", "interrupt"])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file_and_no_other(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "plan.json", unitvar.plan(mlp(), torch.zeros(2, 6))
    path.write_text("old", encoding="utf-8")

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(type(error)):
            made.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text(encoding="utf-8") == "old"
    assert equal(made, saved(made, tmp_path))
