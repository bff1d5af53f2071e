"""Trials on a Ray cluster: a real one, of this machine."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fake import write_cifar10
from unitvar_reproduction.experiments.vgg.trial import Trial, run_trial
from unitvar_reproduction.sweep.run import TrialError, finished, forget_checkpoint, sweep
from unitvar_reproduction.sweep.staged import resumable

GOOD = Trial("nesterov", 1e-2, "paper", 0, width=4, epochs=2, batch=32, held_out=20)


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_a_network_is_the_same_on_ray_and_one_that_fails_does_not_keep_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the home folder
    folder = write_cifar10(tmp_path, 20)

    def train(where: str, trials: list[Trial], **options: Any) -> list[dict[str, Any]]:
        out = tmp_path / where
        run = functools.partial(resumable, run=run_trial, out=out, data_dir=folder)
        settled = functools.partial(forget_checkpoint, out)
        return sweep(run, trials, out / "trials", Console(quiet=True), label="VGG", settled=settled, **options)

    (here,) = train("here", [GOOD], workers=1)
    bad = replace(GOOD, init="nonsense")
    with pytest.raises(TrialError, match=r"(?s)1 of 2 trials failed; the others are saved.*init='nonsense'"):
        train("ray", [bad, GOOD], ray="local")
    (there,) = finished([bad, GOOD], tmp_path / "ray" / "trials")
    assert {**here, "seconds": 0} == {**there, "seconds": 0}
    assert not list((tmp_path / "ray" / "checkpoints").iterdir())
