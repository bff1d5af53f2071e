"""Batches of every kind, how many of them, and noise that .eval() does not stop."""

import sys
from collections import UserDict, namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import unitvar
from tests.batchnorm.test_reestimate import mlp
from unitvar.running.calling import moved

# The run-time type checker draws random numbers itself, and refuses wrong types before the library can.
pytestmark = pytest.mark.usefixtures("untyped")

DATA = torch.randn(4, 16, 64, generator=torch.Generator().manual_seed(0))
Pair = namedtuple("Pair", "x y")
LABELS = torch.zeros(16)


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(depth=1)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.net(x if scale is None else x * scale)


KINDS = {
    "tensors": lambda x: x,
    "tuples": lambda x: (x, LABELS),
    "lists": lambda x: [x, LABELS],
    "named tuples": lambda x: Pair(x, LABELS),
    "dicts": lambda x: {"x": x, "scale": torch.tensor(1.0)},
    "mappings": lambda x: UserDict(x=x),
    "dicts in tuples": lambda x: ({"x": x}, LABELS),
}


def variance(batches, **options) -> Tensor:
    torch.manual_seed(0)
    model = Keyword()
    unitvar.reestimate_bn_(model, batches, **options)
    return model.net[2].running_var


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_kind_of_batch_gives_the_same(kind) -> None:
    assert torch.equal(variance([kind(x) for x in DATA]), variance(DATA.unbind()))
    assert torch.equal(variance(kind(x) for x in DATA), variance(DATA.unbind()))


def test_loaders_and_forward_give_the_same() -> None:
    loader = DataLoader(TensorDataset(DATA.flatten(0, 1), torch.zeros(64)), batch_size=16)
    assert torch.equal(variance(loader), variance(DATA.unbind()))
    odd = [{"image": x, "y": None} for x in DATA]
    assert torch.equal(variance(odd, forward=lambda m, b: m(b["image"])), variance(DATA.unbind()))


def test_packed_sequences_are_one_input() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, packed: PackedSequence) -> Tensor:
            return self.norm(packed.data)

    model, packed = Recurrent(), pack_sequence([torch.randn(3, 2), torch.randn(2, 2)])
    unitvar.reestimate_bn_(model, [packed])
    torch.testing.assert_close(model.norm.running_var, packed.data.var(0))


@pytest.mark.parametrize("batches", ["text", 3, None], ids=type)
def test_what_is_no_iterable_of_batches_is_refused(batches) -> None:
    with pytest.raises(TypeError, match=r"pass a DataLoader or a list"):
        unitvar.reestimate_bn_(mlp(), batches)


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        (DATA[0], r"a tensor of shape \(16, 64\).*one batch, pass \[batch\]; .*pass batches.unbind\(\)"),
        (torch.randn(32, 10, 8), r"a tensor of shape \(32, 10, 8\), not an iterable of batches"),
        ((DATA[0], LABELS), r"tuple of 2 tensors of shapes \(16, 64\) and \(16,\): .*one batch.*pass \[batch\]"),
        ([DATA[0], LABELS.long()[:, None]], r"list of 2 tensors.*pass \[batch\], whose first element.*forward=lambda"),
        ((DATA[0], torch.randn(16, 1)), r"tuple of 2 tensors of shapes \(16, 64\) and \(16, 1\): "),  # a regression
        ((DATA[0], LABELS, LABELS), r"tuple of 3 tensors of shapes \(16, 64\), \(16,\) and \(16,\): "),
        ({"x": DATA[0]}, r"a dict, not.*pass \[batch\]: .*keyword arguments.*forward=lambda model, batch: model"),
    ],
)
def test_one_batch_instead_of_many_is_refused_with_the_remedy(batches, words: str) -> None:
    model = Keyword()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for method in ("one-pass", "sequential"):
        with pytest.raises(TypeError, match=words):
            unitvar.reestimate_bn_(model, batches, method=method)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_remedies_work() -> None:
    alone = variance([DATA[0]])
    assert torch.equal(variance([(DATA[0], LABELS)]), alone)
    assert torch.equal(variance([{"x": DATA[0]}]), alone)
    assert torch.equal(variance([{"image": DATA[0]}], forward=lambda model, batch: model(batch["image"])), alone)
    # Two batches of one kind are two batches, of whatever sizes.
    assert torch.equal(variance((DATA[0], DATA[1])), variance([DATA[0], DATA[1]]))
    images = nn.BatchNorm2d(3)
    assert unitvar.reestimate_bn_(images, [torch.randn(4, 3, 8, 8), torch.randn(4, 3, 6, 6)]).batches == 2


def test_a_dict_that_the_model_does_not_take_is_refused_with_the_remedy() -> None:
    words = r"Batch 0 is a dict with the keys 'image', 'y'.*forward=lambda model, batch: model\(batch\['image'\]\)"
    with pytest.raises(TypeError, match=words):
        variance([{"image": DATA[0], "y": LABELS}])


@pytest.mark.parametrize(("batch", "match"), [(object(), "object"), ("text", "str"), ((), "empty tuple")])
def test_a_batch_of_unknown_kind_is_refused_with_its_index_and_the_remedy(batch, match: str) -> None:
    with pytest.raises(TypeError, match=f"Batch 1 .*{match}"):
        unitvar.reestimate_bn_(mlp(), [DATA[0], batch])


def test_batches_are_moved_to_the_device_of_the_model() -> None:
    batch = {"a": (torch.ones(1), [torch.ones(1)]), "b": Pair(torch.ones(1), "text"), "c": 3}
    there = moved(batch, torch.device("meta"))
    assert there["a"][0].is_meta
    assert there["a"][1][0].is_meta
    assert there["b"].x.is_meta
    assert there["b"].y == "text"
    assert there["c"] == 3


def test_max_batches_reads_no_further() -> None:
    batches = iter(DATA)
    assert unitvar.reestimate_bn_(mlp(), batches, max_batches=3).batches == 3
    assert torch.equal(next(batches), DATA[3])


BAD = {
    "stats": ("mean", ValueError, "'both', 'var'"),
    "method": ("two-pass", ValueError, "'one-pass', 'sequential'"),
    "max_batches": (0, ValueError, "at least 1"),
    "max_batches ": (2.5, TypeError, "float"),
    "tolerance": (0.0, ValueError, "above 0"),
    "forward": (3, TypeError, "not a function; pass forward"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_name_value_and_remedy(name: str) -> None:
    value, kind, match = BAD[name]
    with pytest.raises(kind, match=match):
        unitvar.reestimate_bn_(mlp(), DATA.unbind(), **{name.strip(): value})


def test_tolerance_stops_at_five_batches_or_when_the_worst_error_is_below_it() -> None:
    torch.manual_seed(0)
    model, data = mlp(depth=2), list(torch.randn(200, 64, 64))
    assert unitvar.reestimate_bn_(model, data, tolerance=1e9).batches == 5
    report = unitvar.reestimate_bn_(model, data, tolerance=0.05)
    assert 5 < report.batches < 200
    assert max(float(layer.standard_error.max()) for layer in report) < 0.05
    shorter = unitvar.reestimate_bn_(model, data, max_batches=report.batches - 1)
    assert max(float(layer.standard_error.max()) for layer in shorter) >= 0.05
    assert unitvar.reestimate_bn_(model, data[:7], tolerance=1e-9).batches == 7


def test_progress_shows_batches_and_the_worst_error(capsys: pytest.CaptureFixture[str]) -> None:
    unitvar.reestimate_bn_(mlp(depth=2), list(torch.randn(8, 16, 64)), progress=True)
    shown = capsys.readouterr().err
    assert "8/8" in shown
    assert "s.e." in shown
    unitvar.reestimate_bn_(mlp(depth=2), list(DATA), progress=True, method="sequential")
    assert "BatchNorm 2/2" in capsys.readouterr().err
    unitvar.reestimate_bn_(mlp(depth=2), iter(DATA), progress=True, max_batches=2)
    assert "2/2" in capsys.readouterr().err


def test_progress_without_tqdm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"pip install 'unitvar\[progress\]'"):
        unitvar.reestimate_bn_(mlp(), DATA.unbind(), progress=True)


class Drifting(nn.Module):
    """Draws random numbers to no effect, and changes from call to call: no noise."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1)
        self.calls += 1
        return self.norm(x * self.calls)


class Counting(nn.Module):
    """The same with a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls = nn.BatchNorm1d(64), 0

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1)
        self.calls += 1
        return self.norm(x * self.calls)


@pytest.mark.parametrize("kind", [Drifting, Counting])
def test_state_that_moves_is_not_taken_for_noise(kind: type[nn.Module]) -> None:
    unitvar.reestimate_bn_(kind(), DATA.unbind())


def counted(model: nn.Module) -> list[object]:
    """Count a model's calls outside of it: its own attributes are put back."""
    calls: list[object] = []
    model.register_forward_pre_hook(lambda *_: calls.append(None))
    return calls


class Bare(nn.Module):
    """A dropout that ignores .eval(), before or after the BatchNorm."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.norm, self.where = nn.BatchNorm1d(64), where

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "harmless":
            torch.rand(1)
        x = F.dropout(x, 0.5) if self.where == "before" else x
        x = self.norm(x)
        return F.dropout(x, 0.5) if self.where == "after" else x


@pytest.mark.parametrize(
    ("where", "match"), [("before", "input of BatchNorm 'norm'"), ("after", "after the last BatchNorm")]
)
def test_noise_that_ignores_eval_is_reported_with_the_remedy(where: str, match: str) -> None:
    model = Bare(where)
    calls = counted(model)
    with pytest.warns(UserWarning, match=f"{match}.*bare F.dropout"):
        report = unitvar.reestimate_bn_(model, DATA.unbind())
    assert len(calls) == len(DATA) + 2
    assert report["norm"].values == DATA[..., 0].numel()


def test_more_forwards_run_only_if_random_numbers_were_drawn() -> None:
    for where, extra in (("nowhere", 0), ("harmless", 2)):
        model = Bare(where)
        calls = counted(model)
        unitvar.reestimate_bn_(model, DATA.unbind())
        assert len(calls) == len(DATA) + extra


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_in_the_middle_of_a_loader_goes_on_undisturbed(workers: int) -> None:
    def order(interrupted: bool) -> list[float]:
        shuffle = torch.Generator().manual_seed(0)
        data = TensorDataset(torch.arange(24.0).view(-1, 1).expand(-1, 64))
        options = {"num_workers": workers, "persistent_workers": workers > 0}
        loader = DataLoader(data, batch_size=4, shuffle=True, generator=shuffle, **options)
        seen, model = [], mlp(depth=2)
        for _ in range(2):
            for i, (batch,) in enumerate(loader):
                seen += batch[:, 0].tolist()
                if interrupted and i == 2:
                    found = unitvar.bn_statistics(model, loader, method="sequential")
                    assert found.layers[0].values == 24
        return seen

    assert order(interrupted=True) == order(interrupted=False)
