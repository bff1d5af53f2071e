"""Small data in the formats that the authors of real data sets publish, and a server that has them."""

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


def write_mnist(folder: Path, images: int) -> Path:
    """Write random images in MNIST's format, so many to train on and as many to test on; return the folder."""
    rng = np.random.default_rng(0)
    (folder / "mnist").mkdir(parents=True)
    for part in ("train", "t10k"):
        write_idx(
            folder / "mnist" / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (images, 28, 28), dtype=np.uint8)
        )
        write_idx(folder / "mnist" / f"{part}-labels-idx1-ubyte.gz", rng.integers(0, 10, images, dtype=np.uint8))
    return folder


def write_text(folder: Path, characters: int) -> Path:
    """Write random letters where tiny Shakespeare belongs; return the folder."""
    (folder / "tinyshakespeare").mkdir(parents=True)
    letters = np.random.default_rng(0).choice(list("abcdefghij \n"), characters)
    (folder / "tinyshakespeare" / "input.txt").write_text("".join(letters), encoding="utf-8")
    return folder


def write_idx(path: Path, values: np.ndarray) -> None:
    sizes = np.array(values.shape, dtype=">u4").tobytes()
    path.write_bytes(gzip.compress(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()))


def write_cifar10(folder: Path, images: int) -> Path:
    """Write random images in CIFAR-10's binary version, so many into each of its six files; return the folder."""
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        write_cifar(folder / "cifar-10-batches-bin" / name, images, (10,))
    return folder


def write_cifar100(folder: Path, images: int) -> Path:
    """Write random images in CIFAR-100's binary version, so many into each of its two files; return the folder."""
    for part in ("train", "test"):
        write_cifar(folder / "cifar-100-binary" / f"{part}.bin", images, (20, 100))
    return folder


def write_svhn(folder: Path, images: int) -> Path:
    """Write random images in SVHN's format, which calls a 0 a 10, so many into each of two files; return the folder."""
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    (folder / "svhn").mkdir(parents=True)
    for part in ("train", "test"):
        pixels = rng.integers(0, 256, (32, 32, 3, images), dtype=np.uint8)
        labels = np.arange(images, dtype=np.uint8).reshape(-1, 1) % 10 + 1
        labels[-1] = 10
        savemat(folder / "svhn" / f"{part}_32x32.mat", {"X": pixels, "y": labels}, do_compression=True)
    return folder


def write_cifar(path: Path, images: int, classes: tuple[int, ...]) -> None:
    rows = np.random.default_rng(len(path.name)).integers(0, 256, size=(images, len(classes) + 3072), dtype=np.uint8)
    rows[:, : len(classes)] %= np.array(classes, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.tofile(path)


@dataclass
class Server:
    """What a local server has, how it misbehaves, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    break_after: int | None = None
    """Close the next connection after so many bytes."""

    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """Serve files on this machine."""
    server = Server(files=files)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, asked = self.path.lstrip("/"), self.headers.get("Range")
            server.asked.append((name, asked))
            if name not in server.files:
                self.send_error(404)
                return
            body = server.files[name]
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if asked and server.ranges else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            cut, server.break_after = server.break_after, None
            self.wfile.write(body[start:] if cut is None else body[start : start + cut])

        def log_message(self, *_: object) -> None:
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listening.server_address[1]}/"
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
