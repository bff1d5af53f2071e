"""The data sets: their files as the authors publish them, with checksums, and where to get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DATASETS", "Dataset", "Part"]


@dataclass(frozen=True)
class Part:
    """A file that is read: its checksum, and how many images (or what else) it has."""

    checksum: str
    count: int
    unit: str = "images"


@dataclass(frozen=True)
class Dataset:
    """Files by their path in a data folder, and the mirrors that have them, by themselves or in one archive."""

    mirrors: tuple[str, ...]
    parts: Mapping[str, Part]
    archive: str | None = None
    archive_checksum: str | None = None


# Each sha256 was computed from the file itself. Where we had no complete file, it is the md5 that CIFAR's authors print
# on their page, that torchvision has for SVHN, and for CIFAR-100's train.bin the one in sugarme/gotch, whose md5 of
# test.bin we could confirm.
DATASETS = {
    "mnist": Dataset(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "mnist/train-images-idx3-ubyte.gz": Part(
                "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 60_000
            ),
            "mnist/train-labels-idx1-ubyte.gz": Part(
                "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 60_000
            ),
            "mnist/t10k-images-idx3-ubyte.gz": Part(
                "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 10_000
            ),
            "mnist/t10k-labels-idx1-ubyte.gz": Part(
                "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 10_000
            ),
        },
    ),
    "cifar10": Dataset(
        ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
        {
            "cifar-10-batches-bin/data_batch_1.bin": Part(
                "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5", 10_000
            ),
            "cifar-10-batches-bin/data_batch_2.bin": Part(
                "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed", 10_000
            ),
            "cifar-10-batches-bin/data_batch_3.bin": Part(
                "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67", 10_000
            ),
            "cifar-10-batches-bin/data_batch_4.bin": Part(
                "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48", 10_000
            ),
            "cifar-10-batches-bin/data_batch_5.bin": Part(
                "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add", 10_000
            ),
            "cifar-10-batches-bin/test_batch.bin": Part(
                "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b", 10_000
            ),
        },
        archive="cifar-10-binary.tar.gz",
        archive_checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
    ),
    "cifar100": Dataset(
        ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
        {
            "cifar-100-binary/train.bin": Part("md5:6172c7755cfe09b2fe270c85cebc1b15", 50_000),
            "cifar-100-binary/test.bin": Part(
                "sha256:d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a", 10_000
            ),
        },
        archive="cifar-100-binary.tar.gz",
        archive_checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
    ),
    "svhn": Dataset(
        ("http://ufldl.stanford.edu/housenumbers/",),
        {
            "svhn/train_32x32.mat": Part("md5:e26dedcc434d2e4c54c9b2d4a06d8373", 73_257),
            "svhn/test_32x32.mat": Part("md5:eb5a983be6a315427106f1b164d9cef3", 26_032),
        },
    ),
    "tinyshakespeare": Dataset(
        ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",),
        {
            "tinyshakespeare/input.txt": Part(
                "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", 1_115_394, "characters"
            ),
        },
    ),
}
