"""The training study: rates are searched as it says, differences are paired, and a sweep resumes."""

import json
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import unitvar
from fake import write_cifar10, write_mnist, write_text
from unitvar_reproduction.data import tasks
from unitvar_reproduction.data.tasks import Examples
from unitvar_reproduction.experiments.pages import refreshed
from unitvar_reproduction.experiments.training import search, summary
from unitvar_reproduction.experiments.training.experiment import Training, all_inits, plan
from unitvar_reproduction.experiments.training.families import FAMILIES, MLPS, ours
from unitvar_reproduction.experiments.training.gains import advised, effective_gain
from unitvar_reproduction.experiments.training.page import generated
from unitvar_reproduction.experiments.training.search import Cell, chosen, following, inside, ladder
from unitvar_reproduction.experiments.training.section import COLUMNS, matrix, scoreboard
from unitvar_reproduction.experiments.training.trial import Trial
from unitvar_reproduction.networks.fill import OPTIONS, fill_
from unitvar_reproduction.statistics import estimate
from unitvar_reproduction.sweep.pools import together
from unitvar_reproduction.sweep.store import Ledger
from unitvar_reproduction.training.steps import Steps, judge_scores, train_steps

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the published file")
RESULTS = Path(__file__).parents[1] / "results"
CELL = Cell("lstm", "adamw", "default")
START = list(search.START["adamw"])


def search_on(valley: dict[int, float], seeds: int = 5) -> dict[tuple[int, int], float]:
    """Run a whole search where the loss is a function of the rung alone."""
    rungs = {ladder(rung): rung for rung in valley}
    known: dict[tuple[int, int], float] = {}
    while todo := following(CELL, known, seeds):
        for trial in todo:
            rung = rungs[trial.rate]
            assert (rung, trial.seed) not in known
            known[rung, trial.seed] = valley[rung]
    return known


def test_the_ladder_has_two_rates_a_decade() -> None:
    assert [ladder(rung) for rung in range(-8, 2)] == [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0]


@pytest.mark.parametrize("best", range(-9, 0))
def test_the_best_rate_ends_inside_what_was_tried_wherever_it_is(best: int) -> None:
    known = search_on({rung: 1 + 0.1 * abs(rung - best) for rung in range(-20, 9)})
    assert chosen(known) == best
    assert inside(known)
    assert {(best - 1, 0), (best + 1, 0)} <= known.keys()
    assert sorted(seed for rung, seed in known if rung == best) == [0, 1, 2, 3, 4]
    assert len({rung for rung, _ in known}) >= 4


def test_a_loss_that_falls_forever_ends_the_search_at_an_edge_and_says_so() -> None:
    known = search_on({rung: 1 - 0.01 * rung for rung in range(-20, 9)})
    assert len({rung for rung, _ in known}) == search.MOST
    assert not inside(known)


def test_a_network_that_never_trains_is_not_searched_forever() -> None:
    known = search_on({rung: 2.3026 - 1e-5 * rung for rung in range(-20, 9)})
    assert sorted({rung for rung, _ in known}) == START


def test_a_rate_that_diverges_is_never_chosen() -> None:
    known = search_on({rung: 1.0 - 0.1 * rung if rung < START[2] else math.inf for rung in range(-20, 9)})
    assert chosen(known) == START[1]


def record(init: str, rate: float, seed: int, tuning: float | None, report: float | None) -> dict[str, object]:
    config = {"family": "lstm", "optimiser": "adamw", "init": init, "rate": rate, "seed": seed, "steps": 2000}
    return {"config": config, "tuning": {"log_loss": tuning}, "report": {"log_loss": report, "error": 0.5}}


def test_differences_are_paired_by_seed() -> None:
    noise = [0.5, -0.7, 0.1, 0.9, -0.3]  # of the seed, far larger than the gain
    gains = [0.010, 0.012, 0.009, 0.011, 0.010]
    records = [record("default", 1e-3, s, 2.0, 2 + noise[s]) for s in range(5)]
    records += [record("he", 3e-3, s, 1.9, 2 + noise[s] - gains[s]) for s in range(5)]
    records += [record("he", 1e-2, 0, 2.5, 0.1)]  # best on the reported set, but not chosen
    saved = {row["init"]: row for row in summary.summarise(records)}
    difference = saved["he"]["minus default"]
    expected = estimate([-g for g in gains])
    assert difference["verdict"] == "better"
    assert difference["difference"]["mean"] == pytest.approx(expected.mean)
    assert difference["difference"]["half_width"] == pytest.approx(expected.half_width)
    assert saved["he"]["rate"] == 3e-3


def test_ours_is_what_initialize_does_to_the_family_without_options() -> None:
    losses = {"default": 2.0, "scaled": 1.9, "damped": 2.1}
    records = []
    for family in ("lstm", "post-ln"):
        for init, loss in losses.items():
            found = [record(init, 1e-3, seed, loss, loss + 1e-3 * seed) for seed in range(5)]
            records += [{**r, "config": {**r["config"], "family": family}} for r in found]  # type: ignore[dict-item]
    saved = summary.summarise(records)
    found = summary.claims(saved, "adamw")
    assert (found["better"], found["worse"]) == (["lstm"], ["post-ln"])
    assert {(r["family"], r["init"]) for r in saved if not r["minus ours"]["verdict"]} == {
        (family, ours(family)) for family in ("lstm", "post-ln")
    }


@pytest.mark.parametrize("family", [name for name, kind in FAMILIES.items() if kind.residual])
def test_the_study_knows_what_initialize_does_without_options(family: str) -> None:
    model = FAMILIES[family].make()
    tokens = FAMILIES[family].embeds
    example = torch.randint(65, (4, 32)) if tokens else torch.randn(4, 3, 16, 16)
    plans = [
        unitvar.plan(model, example, **options) for options in ({}, {"residual": OPTIONS[ours(family)]["residual"]})
    ]
    assert [x.scale for x in plans[0]] == pytest.approx([x.scale for x in plans[1]])


def test_verdicts_need_seeds_an_interval_and_a_sign() -> None:
    better = estimate([-1.0, -1.1, -0.9, -1.0, -1.0])
    assert summary.judged(better, 5) == "better"
    assert summary.judged(better, 4) == "open"
    assert summary.judged(estimate([1.0, 1.1, 0.9, 1.0, 1.0]), 5) == "worse"
    assert summary.judged(estimate([1.0, -1.1, 0.9, -1.0, 1.0]), 5) == "no difference"
    records = [record("default", 1e-3, s, 2.0, 2.0 + s) for s in range(5)]
    records += [record("he", 1e-3, s, 2.0, None if s == 3 else 2.0 + s) for s in range(5)]
    row = summary.summarise(records)[1]
    assert (row["loss"], row["minus default"]["verdict"]) == (None, "diverged")


def test_one_seed_is_one_order_and_one_stream_of_masks() -> None:
    generator = torch.Generator().manual_seed(0)
    examples = Examples(torch.arange(50.0).view(50, 1), torch.randint(3, (50,), generator=generator))

    class Listening(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(1, 3), nn.Dropout(0.5)
            self.heard: list[torch.Tensor] = []
            nn.init.constant_(self.layer.weight, scale)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = self.drop(torch.ones_like(x))
            self.heard.append(torch.cat([x, mask], 1))
            return self.layer(x * mask)  # type: ignore[no-any-return]

    heard = []
    for scale, seed in ((1.0, 3), (0.1, 3), (1.0, 4)):
        torch.manual_seed(int(100 * scale))
        model = Listening(scale)
        curve, diverged = train_steps(model, examples, Steps(12, 1e-3, 8), seed=seed, points=4)
        assert (len(curve), diverged) == (5, None)
        heard.append(torch.stack(model.heard))
    assert torch.equal(heard[0], heard[1])
    assert not torch.equal(heard[0], heard[2])
    assert heard[0][:6, :, 0].unique().numel() == 48  # an epoch without its last two examples, none twice


def test_the_rate_rises_over_a_twentieth_and_falls_by_a_cosine() -> None:
    how = Steps(100, 2.0, 8)
    rates = [how.rate_at(step) for step in range(100)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert rates[5:] == pytest.approx([1 + math.cos(math.pi * k / 95) for k in range(95)])


def test_a_diverging_network_ends_early() -> None:
    examples = Examples(torch.full((8, 1), 1e30), torch.zeros(8, dtype=torch.long))
    curve, diverged = train_steps(nn.Linear(1, 2), examples, Steps(100, 1e9, 8, "nesterov"), seed=0)
    assert diverged is not None
    assert diverged < 100
    assert not math.isfinite(curve[-1])


def test_scores_are_judged_by_class_and_by_pixel() -> None:
    scores = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    model = nn.Identity()
    by_class = judge_scores(model, Examples(scores, torch.tensor([1, 1])))
    assert by_class["error"] == 0.5
    assert by_class["log_loss"] == pytest.approx((math.log(1 + math.exp(-2)) + math.log(1 + math.e)) / 2)
    by_pixel = judge_scores(model, Examples(scores, torch.tensor([[0.0, 1.0], [0.0, 1.0]])))
    logs = [math.log(2), math.log(1 + math.exp(-2)), math.log(1 + math.e), math.log(2)]
    assert by_pixel["log_loss"] == pytest.approx(sum(logs) / 4)
    assert by_pixel["error"] == 0.5


def test_every_family_has_an_initialisation_of_its_own_and_is_in_the_plan() -> None:
    planned = list(plan())
    for family, kind in FAMILIES.items():
        assert kind.task in tasks.TASKS
        for optimiser in search.START:
            inits = {init for f, o, own in planned if (f, o) == (family, optimiser) for init in own}
            assert inits == set(all_inits(family)) >= {"default", kind.usual, "scaled", "lsuv", "measured"}
            assert ("unit" in inits) == ("zero" in inits) == kind.residual


@pytest.mark.parametrize("family", ["gpt", "gpt-tied", "mixer", "post-ln", "vit", "resnet", "convnext", "unet", "lstm"])
def test_residual_options_are_compared_where_they_change_weights(family: str) -> None:
    kind = FAMILIES[family]
    words = kind.task == "next character"
    example = torch.randint(65, (4, tasks.LENGTH)) if words else torch.randn(4, 3, 16, 16)
    filled = []
    for init in ("scaled", "unit"):
        torch.manual_seed(0)
        filled.append(dict(fill_(kind.make(), init, example).named_parameters()))
    assert any(not torch.allclose(w, filled[1][name]) for name, w in filled[0].items()) == kind.residual


@pytest.mark.parametrize("family", ["gpt", "post-ln"])
def test_a_gain_means_what_a_user_types(family: str) -> None:
    example = torch.randint(65, (4, tasks.LENGTH))
    filled = []
    for fill in (lambda m: fill_(m, "gain-0.7", example), lambda m: unitvar.initialize_(m, example, gain=0.7)):
        torch.manual_seed(0)
        model = FAMILIES[family].make()
        fill(model)
        filled.append(model.state_dict())
    assert all(torch.equal(w, filled[1][name]) for name, w in filled[0].items())


@pytest.mark.parametrize("init", ["default", "he", "xavier", "scaled", "paper", "gain-0.5"])
def test_every_initialisation_of_a_dense_network_is_a_gain(init: str) -> None:
    family = "mlp-relu-8-0.3"
    torch.manual_seed(0)
    model = fill_(FAMILIES[family].make(), init, torch.randn(64, 1, 28, 28))
    hidden = [m for m in model.modules() if isinstance(m, nn.Linear)][3]
    # Unit variance: s² = p / E f² = 0.7 / 0.5. The mean of 128² squares is within some percent.
    measured = math.sqrt(hidden.weight.square().sum(1).mean().item() / 1.4)
    assert effective_gain(family, init) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(
    ("family", "adamw", "nesterov"),
    [
        ("mlp-relu-12-0.4", "gain-0.5", "gain-0.7"),
        ("mlp-gelu-16-0.1", "scaled", "gain-0.8"),  # 56 % noise
        ("mlp-relu-4-0.1", "scaled", "scaled"),
    ],
)
def test_what_the_plan_advises_is_read_off_its_words(family: str, adamw: str, nesterov: str) -> None:
    assert (advised(family, "adamw"), advised(family, "nesterov")) == (adamw, nesterov)


def test_with_the_gain_that_the_plan_advises_no_saved_network_is_worse_than_with_torchs_default() -> None:
    """What the page says of the table of the advice; all networks with dropout 0.3 or more get one."""
    saved = json.loads((RESULTS / "training.json").read_text(encoding="utf-8"))["rows"]
    by = {(row["family"], row["optimiser"], row["init"]): row for row in saved}
    verdicts = {
        (family, optimiser): by[family, optimiser, init]["minus default"]["verdict"]
        for family in MLPS
        for optimiser in search.START
        if (init := advised(family, optimiser)) != "scaled"
    }
    assert {family for family, _ in verdicts} >= {f for f in MLPS if float(f.split("-")[3]) >= 0.3}
    assert set(verdicts.values()) <= {"better", "no difference"}


def small_data(folder: Path) -> Path:
    write_text(folder, 4000)
    write_mnist(folder, 300)
    write_cifar10(folder, 60)
    return folder


def test_tasks_are_disjoint_standardised_and_shaped_alike(tmp_path: Path) -> None:
    folder = small_data(tmp_path)
    for name, make in tasks.TASKS.items():
        task = make(folder)
        parts = task.training, task.tuning, task.report
        assert all(len(p.inputs) == len(p.targets) > 0 for p in parts), name
        assert len({p.inputs.shape[1:] for p in parts}) == len({p.targets.shape[1:] for p in parts}) == 1
        if task.training.inputs.is_floating_point():
            std, mean = torch.std_mean(task.training.inputs)
            assert (mean.item(), std.item()) == pytest.approx((0, 1), abs=1e-3)
    text = tasks.TASKS["next character"](folder)
    assert torch.equal(text.training.inputs[:, 1:], text.training.targets[:, :-1])
    assert len(text.training) == 3600 - tasks.LENGTH
    digits = tasks.TASKS["segments"](folder)
    assert set(digits.training.targets.unique().tolist()) <= {0.0, 1.0}
    assert digits.training.targets.shape[1:] == (16, 16)


def test_a_tiny_study_runs_resumes_and_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out, page = small_data(tmp_path / "data"), tmp_path / "out", tmp_path / "page.md"
    monkeypatch.setattr(search, "START", {"adamw": range(-6, -3)})
    monkeypatch.setattr("unitvar_reproduction.sweep.run.processes", lambda size: together())  # no new processes
    parts = ("size", "overview", "calls", "tables", "advice", "gains", "pictures")
    page.write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in parts))
    options = {"families": ("autoencoder",), "optimisers": ("adamw",), "steps": 3, "seeds": 2, "workers": 1}
    study = Training(out, folder, inits=("default", "he"), page=page, **options)  # type: ignore[arg-type]
    console = Console(quiet=True)
    study.run(console)
    file = out / "training" / "autoencoder.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    saved = json.loads((out / "training.json").read_text(encoding="utf-8"))
    assert {row["init"] for row in saved["rows"]} == {"default", "he"}
    assert saved["config"]["trials"] == len(lines) >= 2 * (3 + 2)
    assert "commit" in saved["environment"]
    assert page.read_text(encoding="utf-8") == refreshed(page.read_text(encoding="utf-8"), generated(saved))
    assert "torch's default" in page.read_text(encoding="utf-8")

    file.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40], encoding="utf-8")  # killed while it wrote
    study.run(console)
    again = file.read_text(encoding="utf-8").splitlines()
    assert again[:-1] == lines[:-1]
    old, new = json.loads(lines[-1]), json.loads(again[-1])
    assert {**old, "seconds": 0} == {**new, "seconds": 0}  # the same network, trained again


def test_the_page_of_the_docs_has_the_saved_numbers() -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "when-does-it-help.md").read_text(encoding="utf-8")
    saved = json.loads((root / "reproduction" / "results" / "training.json").read_text(encoding="utf-8"))
    assert refreshed(text, generated(saved)) == text
    assert len(saved["rows"]) == len(summary.summarise(stored(root / "reproduction" / "results" / "training")))


def stored(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in folder.iterdir() for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_ledger_keeps_lines_by_config_and_names_a_bad_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "family")
    trials = [Trial("lstm", "adamw", "he", 1e-3, seed) for seed in range(3)]
    for trial in trials[:2]:
        ledger.save(trial, {"config": vars(trial), "loss": trial.seed})
    assert ledger.missing(trials) == [False, False, True]
    assert [r["loss"] for r in ledger.load(reversed(trials))] == [1, 0]
    (tmp_path / "lstm.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"Line 1 of .*lstm\.jsonl is not a result"):
        ledger.load(trials)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_has_a_column_for_every_initialisation(family: str) -> None:
    inits = [init for init in all_inits(family) if init not in ("default", ours(family))]
    loss = {"mean": 1.0, "half_width": 0.1}
    found = {"difference": {"mean": 0.25, "half_width": 0.125}, "verdict": "worse"}
    rows = [{"family": family, "optimiser": "adamw", "init": i, "loss": loss, "minus default": found} for i in inits]
    (cells,) = matrix(rows, "adamw").rows
    usual = FAMILIES[family].usual
    assert cells.count("+0.250 ± 0.125 *") == len(inits) + (usual in COLUMNS and usual in inits)


def test_unknown_choices_are_named() -> None:
    with pytest.raises(ValueError, match=r"--families gpt5 is not one of lstm"):
        Training(families=("gpt5",))


def test_the_scoreboard_counts_verdicts_against_ours_and_names_where_ours_is_worse() -> None:
    def row(family: str, init: str, verdict: str) -> dict[str, object]:
        return {"family": family, "optimiser": "adamw", "init": init, "minus ours": {"verdict": verdict}}

    saved = [row("lstm", "lsuv", "better"), row("gpt", "lsuv", "worse"), row("vit", "lsuv", "open")]
    saved += [row("gpt", "unit", "no difference"), row("resnet", "torchvision", "diverged")]
    saved += [row("mlp-relu-4-0.5", "lsuv", "worse")]
    assert scoreboard(saved).rows == (
        ("the family's usual one", "1", "0", "0", "–", "–", "–"),
        ("LSUV", "1", "0", "LSTM", "–", "–", "–"),
        ('residual="unit"', "0", "1", "0", "–", "–", "–"),
    )
    assert scoreboard(saved, dense=True).rows == (("LSUV", "1", "0", "0", "–", "–", "–"),)
