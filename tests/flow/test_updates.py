"""watch: how far an optimiser moves a weight, steps that a loop marks itself, and writers that are functions."""

from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import unitvar
from tests.flow.test_watch import network, train


def ratios(history: unitvar.History) -> dict[tuple[int, str], float | None]:
    return {(row["step"], row["name"]): row["update_ratio"] for row in history.rows}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_the_update_is_what_the_weight_moved_relative_to_its_norm(optimiser: type, compiled: bool) -> None:
    model = network()
    called = torch.compile(model, backend="eager") if compiled else model
    optimizer = optimiser(model.parameters(), lr=0.01)
    expected = {}
    with unitvar.watch(called, every=2) as history:
        for step in range(4):
            optimizer.zero_grad()
            called(torch.randn(8, 16)).square().mean().backward()
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.step()
            if step % 2 == 0:
                for name, p in model.named_parameters():
                    if p.dim() > 1:
                        expected[step, name] = ((p - before[name]).norm() / before[name].norm()).item()
    assert ratios(history) == {key: pytest.approx(value, rel=1e-5) for key, value in expected.items()}
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks


def test_gradients_may_accumulate_and_two_optimisers_may_share_the_weights() -> None:
    model = network()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[3:].parameters(), lr=0.2)
    stranger = nn.Linear(3, 3)
    other = torch.optim.SGD(stranger.parameters(), lr=0.1)
    with unitvar.watch(model, every=4) as history:
        for _ in range(2):
            model(torch.randn(8, 16)).square().mean().backward()
        stranger(torch.randn(2, 3)).sum().backward()
        other.step()
        assert set(ratios(history).values()) == {None}
        sizes = {name: (p.grad.norm() / p.norm()).item() for name, p in model.named_parameters() if p.dim() > 1}
        first.step()
        second.step()
        first.step()  # no longer the observed one
    rates = {"0.weight": 0.1, "3.weight": 0.2, "5.weight": 0.2}
    expected = {(0, name): pytest.approx(rate * sizes[name], rel=1e-4) for name, rate in rates.items()}
    assert ratios(history) == expected


def test_an_update_by_hand_or_of_a_zero_weight_has_no_ratio() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.zeros_(model[0].weight)
    with unitvar.watch(model) as history:
        model(torch.randn(8, 4)).square().mean().backward()
        torch.optim.SGD(model[0].parameters(), lr=0.1).step()
        with torch.no_grad():
            model[1].weight -= model[1].weight.grad
    assert set(ratios(history).values()) == {None}


class Parts(nn.Module):
    """What a loop calls only in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 8), nn.Linear(8, 4)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_marked_step_has_all_parts_that_run_in_it(compiled: bool) -> None:
    torch.manual_seed(0)
    model = Parts()
    encoder = torch.compile(model.encoder, backend="eager") if compiled else model.encoder
    seen = []
    with unitvar.watch(model, every=2, marked=True) as history:
        for _ in range(3):
            history.begin()
            h = encoder(torch.randn(6, 4))
            z = model.decoder(h.relu())
            with torch.no_grad():
                model.decoder(torch.randn(2, 8))  # no part of training
            z.sum().backward()
            history.end()
            model.decoder(h.detach())  # after the step
            seen.append((h.square().mean().item(), z.square().mean().item()))
    assert history.steps == 3
    found = [(row["step"], row["name"], row["variance"]) for row in history.rows]
    assert found == [
        (step, name, pytest.approx(value, rel=1e-5))
        for step in (0, 2)
        for name, value in zip(("encoder.weight", "decoder.weight"), seen[step], strict=True)
    ]
    with pytest.raises(RuntimeError, match="marked=True"), unitvar.watch(model) as by_calls:
        by_calls.begin()


def test_a_writer_may_be_a_function() -> None:
    written: list[tuple[int, Mapping[str, float]]] = []
    history = train(network(), 3, every=2, writer=lambda values, step: written.append((step, dict(values))))
    assert [step for step, _ in written] == [0, 2]
    assert {f"{what}/{row['name']}": row[what] for row in history.rows if row["step"] == 2 for what in row
            if what not in ("step", "name", "use")} == written[1][1]  # fmt: skip
    report = unitvar.measure(network(), torch.randn(8, 16))
    report.write(lambda values, step: written.append((step, dict(values))), step=7)
    assert written[2][0] == 7
    assert written[2][1]["variance/3.weight"] == report["3.weight"].variance
