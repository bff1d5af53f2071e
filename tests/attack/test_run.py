"""The attack itself: what leaves a trace is found, and makes `make attack` fail."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.attack import run
from tests.attack.calls import CALLS, Call
from tests.attack.case import Case
from tests.attack.faults import Strike, at_batches, attempt
from tests.attack.table import PAGE, refreshed, table


@pytest.mark.parametrize(("held", "code"), [(True, 0), (False, 1)])
def test_a_case_that_does_not_hold_fails_the_run_and_is_listed(
    held: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "attack.json"
    attacks = {"first": lambda _: [Case("a", held, "seen")], "second": lambda _: [Case("b", True)]}
    monkeypatch.setattr(run, "ATTACKS", attacks)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert run.main(["--out", str(out)]) == code
    shown = table(json.loads(out.read_text(encoding="utf-8")))
    assert f"| first | 1 | {int(held)} |" in shown
    assert ("- a: seen" in shown) is not held


def test_an_attack_without_cases_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ATTACKS", {"nothing": lambda _: []})
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert run.main(["--out", str(tmp_path / "attack.json")]) == 1


def leaking(model: nn.Module, batches: Iterable[Tensor]) -> None:
    model[0].weight.grad.add_(1)
    list(batches)
    model[0].weight.grad.sub_(1)


def swallowing(model: nn.Module, batches: Iterable[Tensor]) -> None:
    try:
        list(batches)
    except BaseException:
        return


def masking(model: nn.Module, batches: Iterable[Tensor]) -> None:
    try:
        list(batches)
    except BaseException:
        failed = True
    if failed:
        raise RuntimeError("something went wrong")


@pytest.mark.parametrize(
    ("call", "kind", "found"),
    [
        (leaking, "error", "0.weight: gradient"), (leaking, "interrupt", "0.weight: gradient"),
        (swallowing, "interrupt", "struck"), (masking, "error", "struck"),
    ],
)  # fmt: skip
def test_a_call_that_leaves_a_trace_or_hides_a_fault_does_not_hold(
    call: object, kind: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CALLS, "bad", Call(call))
    cases = list(at_batches("bad", kind))
    assert cases
    assert all(not case.held and found in case.note for case in cases)


def test_a_call_that_changes_the_model_without_a_fault_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, "bad", Call(lambda model, _: model.eval()))
    assert not attempt("bad", Strike).held


def test_the_page_of_the_docs_has_the_saved_numbers_and_every_attack() -> None:
    text, found = PAGE.read_text(encoding="utf-8"), json.loads(run.RESULTS.read_text(encoding="utf-8"))
    assert refreshed(text, found) == text
    assert found["attacks"].keys() == run.ATTACKS.keys()
