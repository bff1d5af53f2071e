"""Downloads, from a server on this machine that breaks off, lies, is down."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fake import Server, serving
from unitvar_reproduction.data import fetch
from unitvar_reproduction.data.sources import DATASETS, Dataset, Part

BODY = bytes(range(256)) * 1000
QUIET = Console(quiet=True)
DOWN = "http://127.0.0.1:9/"  # the discard port, on which nobody listens


def sha256(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving({"a.gz": BODY}) as running:
        yield running


def plain(*mirrors: str) -> Dataset:
    return Dataset(mirrors, {"set/a.gz": Part(sha256(BODY), 1)})


def get(folder: Path, *mirrors: str) -> bytes:
    assert fetch.fetch("set", plain(*mirrors), folder, QUIET) == folder
    assert [path.name for path in (folder / "set").iterdir()] == ["a.gz"]
    return (folder / "set" / "a.gz").read_bytes()


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    assert get(tmp_path, server.url) == BODY
    assert get(tmp_path, server.url) == BODY
    assert server.asked == [("a.gz", None)]


def test_a_file_that_has_changed_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    get(tmp_path, server.url)
    (tmp_path / "set" / "a.gz").write_bytes(BODY[:-1])
    assert get(tmp_path, server.url) == BODY


def test_a_broken_connection_is_resumed_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.break_after = 65_536
    assert get(tmp_path, server.url) == BODY
    assert server.asked == [("a.gz", None), ("a.gz", "bytes=65536-")]


def test_an_interrupted_download_is_resumed_by_the_next(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    server.break_after = 32_768
    with pytest.raises(ValueError, match="could not be downloaded"):
        get(tmp_path, server.url)
    assert get(tmp_path, server.url) == BODY
    assert server.asked[-1] == ("a.gz", "bytes=32768-")


def test_another_mirror_goes_on_where_the_first_broke(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    with serving({"a.gz": BODY}) as other:
        server.break_after = 49_152
        assert get(tmp_path, server.url, other.url) == BODY
        assert other.asked == [("a.gz", "bytes=49152-")]


def test_a_server_that_cannot_resume_is_asked_for_all(server: Server, tmp_path: Path) -> None:
    server.break_after, server.ranges = 65_536, False
    assert get(tmp_path, server.url) == BODY


def test_a_partial_file_that_is_too_long_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.gz.partial").write_bytes(BODY + b"more")
    assert get(tmp_path, server.url) == BODY


def test_a_corrupt_file_is_never_kept(server: Server, tmp_path: Path) -> None:
    server.files["a.gz"] = BODY[:-1] + b"!"
    with pytest.raises(ValueError, match=r"(?s)a\.gz of set could not be downloaded.*--data-dir.*does not match"):
        fetch.fetch("set", plain(server.url), tmp_path, QUIET)
    assert list((tmp_path / "set").iterdir()) == []


def test_a_corrupt_mirror_is_passed_over(server: Server, tmp_path: Path) -> None:
    with serving({"a.gz": b"not it"}) as wrong, serving({}) as empty:
        assert get(tmp_path, DOWN, empty.url, wrong.url, server.url) == BODY
        assert len(empty.asked) == 1  # a mirror that says it has no such file is not asked again


def test_when_all_mirrors_are_down_the_error_says_so(tmp_path: Path) -> None:
    with serving({}) as empty, pytest.raises(ValueError, match=r"could not be downloaded") as caught:
        fetch.fetch("set", plain(DOWN, empty.url), tmp_path, QUIET)
    message = str(caught.value)
    assert all(word in message for word in (DOWN, empty.url, "404", sha256(BODY), str(tmp_path / "set"), "--data-dir"))


def archived(*members: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in members:
            info = tarfile.TarInfo(name)
            info.size = len(BODY)
            tar.addfile(info, io.BytesIO(BODY))
    return buffer.getvalue()


def test_only_the_named_members_of_an_archive_are_taken(tmp_path: Path) -> None:
    body = archived("bin/a.bin", "bin/b.bin", "bin/other", "../escaped")
    parts = {"bin/a.bin": Part(sha256(BODY), 1), "bin/b.bin": Part(sha256(BODY), 1)}
    with serving({"x.tar.gz": body}) as server:
        dataset = Dataset((server.url,), parts, "x.tar.gz", sha256(body))
        for _ in range(2):
            fetch.fetch("set", dataset, tmp_path / "cache", QUIET)
        (tmp_path / "cache" / "bin" / "b.bin").write_bytes(b"cut")
        fetch.fetch("set", dataset, tmp_path / "cache", QUIET)
        assert len(server.asked) == 2
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"cache/bin/a.bin", "cache/bin/b.bin"}
    assert (tmp_path / "cache" / "bin" / "b.bin").read_bytes() == BODY


def test_progress_is_shown(server: Server, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    fetch.fetch("set", plain(server.url), tmp_path, console)
    assert "a.gz" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_users_folder_is_used_as_it_is(tmp_path: Path) -> None:
    assert fetch.ensure("mnist", tmp_path) == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_registry_is_complete() -> None:
    assert set(DATASETS) == {"mnist", "cifar10", "cifar100", "svhn", "tinyshakespeare"}
    for dataset in DATASETS.values():
        sums = [part.checksum for part in dataset.parts.values()] + [dataset.archive_checksum or "md5:" + "0" * 32]
        assert all(len(s.partition(":")[2]) == {"md5": 32, "sha256": 64}[s.partition(":")[0]] for s in sums)
        assert all(mirror.endswith("/") for mirror in dataset.mirrors)
