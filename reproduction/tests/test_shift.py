"""Statistics for shifted images: what the corruptions do, and that every kind of statistics is judged."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fake import write_cifar10
from unitvar_reproduction.experiments.shift import BLUR, CONTRAST, CORRUPTIONS, NOISE, SOURCE, TARGET, Shift


def test_corruptions_do_what_their_names_say() -> None:
    images = torch.rand(50, 3, 16, 16, generator=torch.Generator().manual_seed(1))  # not the noise's
    changed = {name: corrupt(images) for name, corrupt in CORRUPTIONS.items()}
    assert all(x.shape == images.shape and x.min() >= 0 and x.max() <= 1 for x in changed.values())
    inside = (images > 0.4) & (images < 0.6)  # where nothing is clipped
    assert (changed["noise"] - images)[inside].std().item() == pytest.approx(NOISE, rel=0.05)
    # Blurred white noise keeps sum k² of its variance: 1 / (4 π σ²) in two dimensions.
    assert changed["blur"][..., 5:11, 5:11].var().item() == pytest.approx(1 / 12 / (4 * torch.pi * BLUR**2), rel=0.2)
    assert torch.allclose(changed["contrast"].std((1, 2, 3)), CONTRAST * images.std((1, 2, 3)))
    assert torch.allclose(changed["contrast"].mean((1, 2, 3)), images.mean((1, 2, 3)))


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_every_kind_of_statistics_is_judged_and_saved(tmp_path: Path) -> None:
    write_cifar10(tmp_path, images=60)
    Shift(tmp_path, tmp_path, 1, images=60, epochs=1, judged=20, sizes=(4, 16), workers=1).run(Console(quiet=True))
    rows = json.loads((tmp_path / "shift.json").read_text(encoding="utf-8"))["rows"]
    kinds = [(row["statistics"], row["target_images"]) for row in rows if row["corruption"] == "blur"]
    assert kinds[0] == (SOURCE, 0)
    assert [size for kind, size in kinds if kind == TARGET] == [4, 16]
    assert len(kinds) == 1 + 2 * 4
    assert all(0 <= row["error"]["mean"] <= 1 for row in rows)
    assert all(row["error minus source"]["mean"] == 0 for row in rows if row["statistics"] == SOURCE)
    assert (tmp_path / "shift.png").stat().st_size > 10_000
