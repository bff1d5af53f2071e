"""What holds for the package as a whole."""

from importlib.metadata import version

import unitvar


def test_version_is_the_one_installed() -> None:
    assert unitvar.__version__ == version("unitvar")
