"""Examples that cannot be run: the error names what was given, what is allowed, and what to do."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import unitvar
from unitvar.running.calling import copied, moved

RUNS = [unitvar.plan, unitvar.initialize_, unitvar.measure]
ALLOWED = "not a tensor, a tuple of positional arguments or a dict of keyword arguments. "
LOADER = DataLoader(TensorDataset(torch.zeros(4, 8), torch.zeros(4)), batch_size=2)


class FromDict(nn.Module):
    """Takes one dict, as detection and language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.linear(batch["image"])


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("example", "message"),
    [
        (LOADER, f"of type DataLoader, {ALLOWED}Pass one batch's input: next(iter(loader))[0]"),
        (iter(LOADER), ALLOWED + "Pass one item of it: next(example)."),
        (np.zeros((2, 8)), f"of type ndarray, {ALLOWED}Pass torch.from_numpy(example)"),
        ("images", f"'images', {ALLOWED}If forward really takes it, pass it in a tuple"),
        (None, f"None, {ALLOWED}If forward really"),
        (3, f"3, {ALLOWED}If forward really"),
        ([torch.zeros(2, 8), torch.zeros(2)], f"of type list, {ALLOWED}If it came from a loader"),
    ],
)
def test_what_is_no_example_is_named_with_what_to_pass(run: Callable[..., Any], example: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        run(nn.Linear(8, 8), example)
    assert str(caught.value).startswith("The example is ")
    assert message in str(caught.value)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"input": x}])
def test_an_empty_batch_is_refused(run: Callable[..., Any], wrap: Callable[[Tensor], Any]) -> None:
    with pytest.raises(ValueError, match=r"The example is empty: it has shape \(0, 8\). Pass a batch with at"):
        run(nn.Linear(8, 8), wrap(torch.zeros(0, 8)))
    run(nn.Linear(8, 8), wrap(torch.ones(1, 8)))


@pytest.mark.parametrize("run", RUNS)
def test_a_dict_for_a_model_that_takes_one_goes_in_as_a_tuple(run: Callable[..., Any]) -> None:
    batch = {"image": torch.ones(2, 8)}
    with pytest.raises(TypeError, match=r"rejected the example's keys 'image' as keyword.*in a tuple: \(example,\)"):
        run(FromDict(), batch)
    assert len(run(FromDict(), (batch,)).layers) == 1


@pytest.mark.usefixtures("untyped")
def test_a_seed_is_no_generator() -> None:
    model = nn.Linear(8, 8)
    before = model.weight.clone()
    with pytest.raises(TypeError, match=r"generator=3 is not a torch.Generator or None; for a seed, pass torch.Gen"):
        unitvar.initialize_(model, torch.zeros(2, 8), generator=3)  # type: ignore[arg-type]
    assert torch.equal(model.weight, before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("run", RUNS)
def test_nested_tensors_are_refused_with_the_remedy(run: Callable[..., object], layout: torch.layout) -> None:
    """Torch itself ended the process: an op that nested tensors do not have, under autograd."""
    x = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=layout)
    with pytest.raises(TypeError, match=r"nested tensor.*to_padded_tensor"):
        run(nn.Linear(8, 8), x)


def test_a_copy_keeps_what_is_there_twice_and_tells_the_rest_apart() -> None:
    """Tensors that are made as they are read have the memory, and the id, of one that is gone."""

    class Made(Mapping[str, Tensor]):
        def __getitem__(self, key: str) -> Tensor:
            return torch.full((64,), float(key))

        def __iter__(self) -> Iterator[str]:
            return map(str, range(20))

        def __len__(self) -> int:
            return 20

    x = torch.ones(2)
    for twice in (copied((x, {"again": x})), moved((x, {"again": x}), torch.device("meta"))):
        assert twice[0] is twice[1]["again"] is not x
    assert all((value == float(key)).all() for key, value in copied(Made()).items())
