"""Dropout at test time, integrated out in one pass."""

from unitvar.expectation.module import Expected, expect, expected
from unitvar.expectation.result import Expectation

__all__ = ["Expectation", "Expected", "expect", "expected"]
