"""record: whole or not at all."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from unitvar_reproduction import record


def test_saves_numbers_with_their_environment(tmp_path: Path) -> None:
    path = record.save(tmp_path / "new" / "a.json", {"x": [1, 2.5]})
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["x"] == [1, 2.5]
    assert {"python", "torch", "commit", "cores", "threads"} <= saved["environment"].keys()


def test_what_is_saved_is_json_with_a_curve_on_one_line(tmp_path: Path) -> None:
    payload = {
        "ä": {"curve": [0.5, None, 1e-9], "nested": [{"a": 1}, []], 5: ()},
        "empty": {},
        "flag": True,
        "environment": {"x": "y"},
    }
    path = record.save(tmp_path / "a.json", payload)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(payload))
    assert '    "curve": [0.5, null, 1e-09],\n' in text


def test_what_is_not_finite_is_saved_as_null_which_every_reader_of_json_takes(tmp_path: Path) -> None:
    path = record.save(tmp_path / "a.json", {"x": math.inf, "y": [1.0, math.nan], "z": ({"w": -math.inf},)})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    saved = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert (saved["x"], saved["y"], saved["z"]) == (None, [1.0, None], [{"w": None}])


def test_a_summary_says_where_its_trials_differ() -> None:
    trials = [{"environment": {"torch": "2", "commit": commit}} for commit in ("a", "b", "a")]
    assert record.combined(trials) == {"torch": "2", "commit": ["a", "b"]}
    assert record.combined(trials[:1]) == trials[0]["environment"]
    assert record.combined([]) == record.environment()
    resumed = {"environment": {"torch": "2", "commit": ["b", "c"]}}
    assert record.combined([*trials, resumed])["commit"] == ["a", "b", "c"]


def test_a_commit_is_marked_if_any_file_of_the_package_has_changed(tmp_path: Path) -> None:
    package = tmp_path / "src" / "package"
    (package / "part").mkdir(parents=True)
    (package / "core.py").touch()
    assert record.commit(package) is None  # no checkout yet; remembered from here on
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert (record.commit(package), record.commit(package / "part")) == (None, head)
    (tmp_path / "notes.txt").touch()
    assert record.commit(package / ".." / "package") == head
    (package / "core.py").write_text("x = 1")
    assert record.commit(package.resolve() / "part" / "..") == head + "+changes"
    assert record.commit(package / "part", package) == head + "+changes"
    assert record.commit(package / "part", tmp_path.parent) == head  # not of this checkout


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record.save(tmp_path / "a.json", {"x": 1})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        record.save(path, {"x": object()})

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(KeyboardInterrupt):
        record.save(path, {"x": 2})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
