"""Shape and type annotations are checked at run time, but only under test."""

import importlib
import pkgutil
import sys
import typing
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from jaxtyping import config, install_import_hook

PACKAGES = ["unitvar", "unitvar_reproduction", "zoo"]


def import_all() -> None:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if module.name != "unitvar.paper":  # which only says where it went
                importlib.import_module(module.name)


# The annotations' names are imported under TYPE_CHECKING: the library does not depend on jaxtyping. What others import
# under it is not always there, so they are imported first, by way of a first import of the library that is thrown away.
for other in ("tests.typecheck", "matplotlib.pyplot"):
    importlib.import_module(other)
import_all()
for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
    del sys.modules[name]
typing.TYPE_CHECKING = True
with install_import_hook(PACKAGES, "tests.typecheck.check"):
    import_all()
typing.TYPE_CHECKING = False

# One test process a core (pytest -n) instead of many threads for small tensors.
torch.set_num_threads(1)

# Deterministic, and no deadline: the machine is shared.
settings.register_profile("unitvar", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("unitvar")


@pytest.fixture
def untyped() -> Iterator[None]:
    """Let a wrong type through to the library's own errors, which is what a user meets."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
