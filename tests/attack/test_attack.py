"""A sample of `make attack`: faults at some ops, hooks, batches and lines, models with a TorchScript part, threads."""

import pytest
import torch
from torch import nn

import unitvar
from tests.attack.calls import BATCHES, CALLS
from tests.attack.faults import KINDS, Strike, at_batches, at_hooks, at_lines, at_ops, attempt, lines_of, ops_of
from tests.attack.snapshot import differences, snapshot

# The run-time type checker draws random numbers itself.
pytestmark = [pytest.mark.usefixtures("untyped"), pytest.mark.filterwarnings("ignore:Full backward hook")]


SIMILAR = {"Plan.apply_", "expect, with samples", "expected", "bn_statistics"}  # to others, which are tried here


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in CALLS if name not in SIMILAR])
def test_a_fault_anywhere_leaves_no_trace(name: str, kind: str) -> None:
    ops, lines = ops_of(name), sorted(lines_of(name).items())
    cases = [
        *at_ops(name, kind, range(1, ops + 1, ops // 4)),
        *at_lines(name, kind, lines[list(KINDS).index(kind) :: len(lines) // 4]),
        *list(at_hooks(name, kind))[::9],
        *at_batches(name, kind),
    ]
    assert [case for case in cases if not case.held] == []


def scripted() -> nn.Sequential:
    torch.manual_seed(0)
    part = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()))
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), part, nn.Linear(6, 6), nn.BatchNorm1d(6))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_with_a_torchscript_part_is_re_estimated_and_told() -> None:
    model = scripted()
    before = snapshot(model)
    report = unitvar.reestimate_bn_(model, BATCHES)
    assert [layer.name for layer in report] == ["1", "4"]
    assert "TorchScript" in report.kept["2.1"]
    changed = differences(before, snapshot(model))
    assert {key.partition(":")[0] for key in changed} == {
        f"{i}.running_{what}" for i in (1, 4) for what in ("mean", "var")
    }
    torch.testing.assert_close(model[1].running_var, model[0](torch.cat(BATCHES)).detach().var(0))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["plan", "measure", "reestimated_bn"])
def test_a_torchscript_part_is_left_as_it_was(name: str) -> None:
    model = scripted()
    before = snapshot(model)
    CALLS[name].run(model, BATCHES)
    assert differences(before, snapshot(model)) == []


@pytest.mark.parametrize("step", ["overwrite", "_rebind", "_same_bits"])
def test_a_step_of_the_librarys_own_that_fails_does_not_keep_the_others_from_running(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step fails for one tensor, again and again: all other tensors come back, and the error is told."""
    from unitvar.running import restore

    original, first = getattr(restore, step), []

    def broken(*args: object) -> object:
        first[:] = first or [id(args[-1])]
        if id(args[-1]) == first[0]:
            raise OSError("a step of its own")
        return original(*args)

    model = nn.Sequential(*(nn.BatchNorm1d(6) for _ in range(4)))
    before = snapshot(model)
    monkeypatch.setattr(restore, step, broken)
    with pytest.raises((RuntimeError, OSError), match=r"a step of its own"):
        unitvar.measure(model, BATCHES[0])
    changed = {key.partition(":")[0] for key in differences(before, snapshot(model))}
    assert len(changed) <= 1


def test_a_call_that_is_not_struck_succeeds() -> None:
    assert attempt("measure", Strike) == ("measure", True, ": ")
