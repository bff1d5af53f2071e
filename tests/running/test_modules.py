"""Which module is running: in this thread, of this model, whatever else runs."""

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from tests.running.threads import together
from unitvar.running.modules import inner, modules_tracked


class Reads(nn.Module):
    """Notes where it is, and calls what it is told to."""

    def __init__(self, *calls: nn.Module) -> None:
        super().__init__()
        self.calls = nn.ModuleList(calls)
        self.paths: list[str] = []
        self.seen: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        for call in self.calls:
            x = call(x)
        self.seen.append(self.paths[-1])
        return x


def hooks() -> int:
    return len(torch_module._global_forward_hooks) + len(torch_module._global_forward_pre_hooks)


def test_paths_follow_the_calls_and_no_hook_stays() -> None:
    leaf = Reads()
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(leaf))
    with modules_tracked(model) as leaf.paths:
        model(torch.zeros(1, 2))
        assert leaf.paths == [""]
    assert leaf.seen == ["1.0"]
    assert hooks() == 0


def test_a_module_that_fails_is_left_again() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with modules_tracked(model) as paths:
        with pytest.raises(RuntimeError):
            model(torch.zeros(1, 2))
        assert paths == [""]


def test_tracking_nests_in_another_model_and_in_the_same() -> None:
    leaf = Reads()
    model, other = nn.Sequential(nn.Sequential(leaf)), nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    class Within(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with modules_tracked(other) as paths:
                assert outer[-1] == "1"
                other(x)
                assert paths == [""]
            assert hooks() == 2
            return x

    whole = nn.Sequential(model, Within(), leaf)
    with modules_tracked(whole) as outer, modules_tracked(model) as leaf.paths:
        whole(torch.zeros(1, 2))
        assert outer == leaf.paths == [""]
    assert leaf.seen == ["0.0", "0.0"]  # the second call is of a module that the inner model has, too
    assert hooks() == 0


def test_each_thread_sees_its_own_modules() -> None:
    inside = threading.Barrier(2, timeout=30)

    class Meets(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inside.wait()  # both threads are in the middle of their forward pass
            return x

    def run(depth: int) -> list[str]:
        leaf = Reads()
        body: nn.Module = nn.Sequential(Meets(), leaf, Meets())
        for _ in range(depth):
            body = nn.Sequential(nn.Identity(), body)
        with modules_tracked(body) as leaf.paths:
            for _ in range(20):
                body(torch.zeros(1, 2))
            assert leaf.paths == [""]
        return leaf.seen

    assert together(lambda: run(0), lambda: run(2)) == [["1"] * 20, ["1.1.1"] * 20]
    assert hooks() == 0


@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_wrappers_come_off() -> None:
    model = nn.Linear(2, 2)
    assert inner(nn.DataParallel(model)) is model
    assert inner(torch.compile(nn.DataParallel(model))) is model  # type: ignore[arg-type]
