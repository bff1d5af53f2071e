"""A sample of the threads of `make attack`: two at once get, to the bit, what each gets alone."""

import pytest

from tests.attack.threads import at_once

pytestmark = pytest.mark.usefixtures("untyped")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("measure", "watch"), ("initialize_, analytic", "initialize_, measured"), ("expect", "plan"),
        ("reestimate_bn_, sequential", "reestimated_bn"),
    ],
)  # fmt: skip
def test_two_threads_at_once_get_what_each_gets_alone(one: str, two: str) -> None:
    found = at_once(one, two, times=2)
    assert found.held, found.note
