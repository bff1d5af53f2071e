"""Data sets downloaded into a cache, once: through pooch, from the first mirror that works, every file checked.

A download that was interrupted goes on where it stopped, with the same mirror or the next.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from unitvar_reproduction.data.sources import DATASETS, Dataset
from unitvar_reproduction.record import replacing

__all__ = ["ensure", "fetch"]

ATTEMPTS = 3  # at each mirror; a connection that breaks is not yet a mirror that is down
TIMEOUT = 30  # seconds without a byte
LARGEST = 1 << 30  # bytes of one file in an archive; those of CIFAR have 154 MB at most


def ensure(name: str, data_dir: Path | None, console: Console | None = None) -> Path:
    """Return the folder that has a data set: the user's, if there is one, else the cache, filled as need be.

    Args:
        name: a key of DATASETS.
        data_dir: the user's folder, which is used as it is.
        console: where to show progress; default: the standard error.
    """
    if data_dir is not None:
        return data_dir
    return fetch(name, DATASETS[name], pooch.os_cache("unitvar"), console)


def fetch(name: str, dataset: Dataset, folder: Path, console: Console | None = None) -> Path:
    """Download what is not in the folder yet or not as it should be; return the folder."""
    console = console or Console(stderr=True)
    missing = [path for path, part in dataset.parts.items() if not _is(folder / path, part.checksum)]
    if not missing:
        return folder
    if dataset.archive is None:
        for path in missing:
            _download(name, dataset, Path(path).name, dataset.parts[path].checksum, folder / path, console)
        return folder
    archive = folder / dataset.archive
    _download(name, dataset, dataset.archive, dataset.archive_checksum, archive, console)
    try:
        with tarfile.open(archive) as tar:
            for path in missing:
                _extract(tar, path, folder / path, dataset.parts[path].checksum)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, KeyError) as error:
        raise ValueError(
            f"{archive} is not an archive with the files of {name} ({error}). Delete it to download it again."
        ) from error
    archive.unlink()
    return folder


def _is(path: Path, checksum: str) -> bool:
    algorithm, _, expected = checksum.partition(":")
    return path.exists() and pooch.file_hash(str(path), alg=algorithm) == expected


def _download(name: str, dataset: Dataset, file: str, checksum: str | None, path: Path, console: Console) -> None:
    """Get a file from the first mirror that has it whole; if none does, say what each answered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pooch.get_logger().setLevel("WARNING")  # the bar says what is downloaded
    downloader = Resuming(path.with_name(path.name + ".partial"), console)
    answers = []
    for mirror in dataset.mirrors:
        for _ in range(ATTEMPTS):
            try:
                pooch.retrieve(mirror + file, checksum, path.name, str(path.parent), downloader=downloader)
            except (requests.RequestException, ValueError) as error:
                answers.append(f"{mirror}: {error}")
                if isinstance(error, requests.HTTPError):
                    break  # it answered, and would answer the same again
            else:
                return
    listed = "\n  ".join(dict.fromkeys(answers))
    raise ValueError(
        f"{file} of {name} could not be downloaded; put it into {path.parent} yourself (expected {checksum}), "
        f"or pass a folder that has it with --data-dir. The mirrors answered:\n  {listed}"
    )


class Resuming:
    """A downloader for pooch that keeps what it has got when a connection breaks, and asks for the rest next time."""

    def __init__(self, partial: Path, console: Console) -> None:
        self.partial = partial
        self.console = console

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        """Complete the partial file from url and hand it over; pooch then checks it, and deletes it if it is wrong."""
        have = self.partial.stat().st_size if self.partial.exists() else 0
        headers = (
            {"Range": f"bytes={have}-", "Accept-Encoding": "identity"} if have else {"Accept-Encoding": "identity"}
        )
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                self.partial.unlink(missing_ok=True)  # there is no more of it than we have: it was another file
                raise requests.ConnectionError(f"{have} bytes are more than {url} has; starting again")
            response.raise_for_status()
            resumed = response.status_code == requests.codes.partial_content
            self._write(response, have if resumed else 0)
        shutil.move(self.partial, output_file)

    def _write(self, response: requests.Response, have: int) -> None:
        """Append the body to the first bytes of the partial file, with a bar."""
        rest = int(response.headers.get("Content-Length", 0))
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        with (
            Progress(*columns, console=self.console, transient=True) as progress,
            open(self.partial, "ab" if have else "wb") as file,
        ):
            bar = progress.add_task(self.partial.stem, total=have + rest if rest else None, completed=have)
            for chunk in response.iter_content(1 << 14):
                file.write(chunk)
                progress.advance(bar, len(chunk))
            if rest and file.tell() < have + rest:
                raise requests.ConnectionError(f"the connection closed after {file.tell()} of {have + rest} bytes")


def _extract(tar: tarfile.TarFile, member: str, path: Path, checksum: str) -> None:
    """Take one regular file out of an archive, if it is as it should be: no link, and nothing without end."""
    found = tar.getmember(member)
    if not found.isreg() or found.size > LARGEST:
        raise ValueError(f"{member} in {tar.name!r} is not a regular file of at most {LARGEST >> 20} MB.")
    source = tar.extractfile(found)
    assert source is not None
    algorithm, _, expected = checksum.partition(":")
    digest = hashlib.new(algorithm)
    with source, replacing(path) as target:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            target.write(chunk)
        if digest.hexdigest() != expected:
            raise ValueError(f"{member} in {tar.name!r} has the wrong checksum (expected {checksum}).")
