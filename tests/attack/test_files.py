"""A sample of the hostile files of `make attack`: what the library itself saves and loads."""

import sys

import pytest

from tests.attack.artefacts import artefacts
from tests.attack.writing import killed, together, unwritable

pytestmark = [
    pytest.mark.usefixtures("untyped"),
    pytest.mark.skipif(sys.platform == "win32", reason="processes are forked"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.mark.parametrize(
    "attack", [artefacts, unwritable, lambda: killed(2), together], ids=["spoilt", "full", "killed", "two"]
)
def test_a_hostile_file_is_refused_and_a_good_one_is_never_lost(attack) -> None:
    cases = list(attack())
    assert cases
    assert [case for case in cases if not case.held] == []
