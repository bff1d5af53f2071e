"""Two threads with two models do not meet."""

import threading

import torch
from torch import nn

import unitvar
from tests.running.threads import together


def network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 4))


def test_watching_sees_every_step_while_another_thread_measures() -> None:
    steps = 50
    measuring, done = threading.Event(), threading.Event()

    class Signals(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            measuring.set()
            return x

    def train() -> unitvar.History:
        model, x = network(8), torch.randn(16, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        assert measuring.wait(30)
        with unitvar.watch(model, every=1) as history:
            for _ in range(steps):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        done.set()
        return history

    def measure() -> list[str]:
        model, x = nn.Sequential(Signals(), *network(16)), torch.randn(16, 16)
        names: list[str] = []
        while not done.is_set():
            names = [layer.name for layer in unitvar.measure(model, x, runs=1)]
        return names

    history, measured = together(train, measure)
    assert history.steps == steps
    assert [(row["step"], row["name"]) for row in history.rows] == [
        (step, name) for step in range(steps) for name in ("0.weight", "3.weight")
    ]
    assert measured == ["1.weight", "4.weight"]


def test_two_threads_plan_as_one_does() -> None:
    def plan(width: int) -> list[str]:
        model = nn.TransformerEncoderLayer(width, 2, 4 * width, batch_first=True)
        return [str(unitvar.plan(model, torch.zeros(2, 3, width))) for _ in range(5)]

    alone = [plan(8), plan(12)]
    assert together(lambda: plan(8), lambda: plan(12)) == alone
    assert torch.backends.mha.get_fastpath_enabled()
