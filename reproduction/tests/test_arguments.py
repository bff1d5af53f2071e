"""The command line in this process: every help page fits, every number too small and every bad folder is named."""

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from unitvar_reproduction.cli import main
from unitvar_reproduction.commands import COMMANDS, Reproduce

# Each member of the union is Annotated[class, the name of its subcommand].
CLASSES = {member.__metadata__[0].name: typing.get_args(member)[0] for member in typing.get_args(COMMANDS)}
WHOLE = [
    (name, field.name, 2 if field.type == "tuple[int, int]" else 1)
    for name, cls in CLASSES.items()
    for field in dataclasses.fields(cls)
    if re.search(r"\bint\b", str(field.type))
]


@pytest.mark.parametrize("name", ["", *CLASSES])
def test_help_fits_in_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: unitvar-paper {name}".rstrip())
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith(" ") for line in lines)


def test_help_is_as_narrow_as_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        main(["healthy", "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 60
    assert "what flows before training and during it." in " ".join(text.split())


def test_options_that_count_something_are_found() -> None:
    found = {field for _, field, _ in WHOLE}
    assert found >= {"seeds", "rounds", "epochs", "depth", "draws", "workers", "examples", "dense"}


@pytest.mark.parametrize(("name", "field", "numbers"), WHOLE)
def test_a_number_that_is_too_small_is_named_with_what_is_allowed(
    name: str, field: str, numbers: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    two = {("healthy", "depth"), ("cost", "rounds")}
    least = 0 if field == "seed" else 2 if (name, field) in two else 1
    flag = "--" + field.replace("_", "-")
    out = ["--out", str(tmp_path / "out")] if any(f.name == "out" for f in dataclasses.fields(CLASSES[name])) else []
    given = [str(least - 1), *["9"] * (numbers - 1)]
    assert main([name, *out, flag, *given]) == 2
    assert f"unitvar-paper: {flag} {least - 1} is too small: pass {least} or more" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_default_is_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    main(["depth", "--dense", "0", "500"])
    assert "or omit it for 100 500." in " ".join(capsys.readouterr().err.split())
    main(["reproduce", "--workers", "0"])
    assert capsys.readouterr().err.endswith("or omit it.\n")


def test_a_folder_that_cannot_be_is_named_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reproduce, "run", None)  # it does not come to that
    (tmp_path / "file").touch()
    assert main(["reproduce", "--out", str(tmp_path / "file" / "deeper")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"--out {tmp_path / 'file' / 'deeper'} cannot be created: {tmp_path / 'file'} is a file" in said
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    assert main(["reproduce", "--out", str(tmp_path / "new")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"--out {tmp_path / 'new'} cannot be written: {tmp_path} is not writable. Pass another folder." in said


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (OSError(28, "No space left on device"), 2, "No space left"),
        (ValueError("word " * 60 + "\nsecond"), 2, "\nsecond\n"),
        (KeyboardInterrupt(), 130, "interrupted; saved results are kept"),
    ],
)
def test_errors_are_short_lines_without_a_traceback(
    raised: BaseException,
    status: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(Reproduce, "run", fail)
    assert main(["reproduce"]) == status
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("unitvar-paper: ")
    assert max(map(len, error.splitlines())) <= 80
