"""Moments of batches, pooled: equal to brute force in float64, whatever the layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unitvar.batchnorm.moments import Moments, Spread, batch_moments

SHAPES = [(7, 5), (300, 3), (1, 4), (6, 5, 1), (6, 5, 9), (4, 3, 5, 7), (2, 3, 4, 5, 6), (1, 8, 3, 3), (70, 2, 8, 8)]


def brute(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x.double().movedim(1, 0).flatten(1)
    return values.mean(1), values.var(1, correction=0)


def check(x: Tensor, rtol: float = 2e-6) -> Moments:
    moments = batch_moments(x)
    mean, var = brute(x)
    assert moments.count == x.numel() // x.shape[1]
    torch.testing.assert_close(moments.mean, mean, rtol=1e-6, atol=1e-6 * float(x.double().std(correction=0)))
    torch.testing.assert_close(moments.biased, var, rtol=rtol, atol=1e-30)
    return moments


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loc", [0.0, 3.0, 100.0])
def test_equal_to_brute_force(shape: tuple[int, ...], loc: float) -> None:
    check(torch.randn(shape) + loc)
    check((torch.randn(shape) + loc).double())


@pytest.mark.parametrize("rows", [7, 70_000])
def test_rows_may_lie_in_memory_in_any_way(rows: int) -> None:
    check(torch.randn(5, rows).t() + 1)
    check(torch.randn(rows, 10)[:, ::2] + 1)
    check(torch.randn(1, 5).expand(rows, 5))


@pytest.mark.parametrize("shape", [(2, 64, 64, 64), (2, 32, 112, 112), (3, 64, 1031), (64, 64, 32, 32), (65536, 8)])
@pytest.mark.parametrize("loc", [0.0, 4.0, 7.9, 8.1])
def test_large_inputs_are_summed_in_float32_without_harm(shape: tuple[int, ...], loc: float) -> None:
    check(torch.randn(shape) + loc, rtol=5e-6)


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "strided", "expanded"])
def test_layout_in_memory_does_not_matter(layout: str) -> None:
    x = torch.randn(6, 4, 8, 10)
    check(
        {
            "channels_last": x.contiguous(memory_format=torch.channels_last),
            "transposed": x.transpose(0, 1),
            "strided": x[:, ::2, 1:, ::3],
            "expanded": x[:1].expand(5, 4, 8, 10),
        }[layout]
    )


@pytest.mark.parametrize("shape", [(4096, 3), (16, 3, 16, 16)])
@pytest.mark.parametrize(("loc", "scale"), [(1000.0, 0.01), (-1e4, 1.0), (1e20, 1e19), (1e-20, 1e-22)])
def test_a_large_mean_or_extreme_values_leave_the_variance_right(shape, loc: float, scale: float) -> None:
    moments = check(torch.randn(shape) * scale + loc)
    assert (moments.m2 > 0).all()


def test_only_channels_whose_mean_hides_the_spread_differ_from_the_plain_sums() -> None:
    x = torch.randn(8, 3, 16, 16)
    x[:, 1] = x[:, 1] * 0.01 + 1000
    x[:, 2] = 5.0
    moments = check(x, rtol=1e-4)
    assert moments.m2[2] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_full(dtype: torch.dtype) -> None:
    check((torch.randn(512, 3, 8, 8) + 2).to(dtype))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_are_not_finite(bad: float) -> None:
    x = torch.randn(4, 3, 8, 8)
    x[2, 1, 3, 3] = bad
    assert not batch_moments(x).finite


@given(
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    loc=st.floats(-1e3, 1e3),
    seed=st.integers(0, 1000),
)
def test_merging_any_split_in_any_order_gives_the_whole(cuts: list[int], loc: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, 2, generator=generator, dtype=torch.float64) + loc for n in cuts]
    pooled = batch_moments(parts[0])
    for part in parts[1:]:
        pooled = pooled.merge(batch_moments(part))
    mean, var = brute(torch.cat(parts))
    torch.testing.assert_close(pooled.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pooled.biased, var, rtol=1e-8, atol=1e-12)


def residual_error(batches: list[Moments], pooled: Moments) -> Tensor:
    var = pooled.biased
    total = sum((b.count * (b.biased + (b.mean - pooled.mean) ** 2 - var)) ** 2 for b in batches)
    return (total * len(batches) / (len(batches) - 1)).sqrt() / pooled.count / var


@given(st.integers(2, 12), st.integers(0, 1000), st.integers(1, 11))
def test_standard_error_follows_its_formula_and_merges(n: int, seed: int, cut: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    loc = 100 * torch.randn(1, generator=generator, dtype=torch.float64)
    sizes = torch.randint(2, 30, (n,), generator=generator).tolist()
    batches = [batch_moments(torch.randn(k, 3, generator=generator, dtype=torch.float64) + loc) for k in sizes]
    left, right = Spread(), Spread()
    for i, batch in enumerate(batches):
        (left if i < cut else right).add(batch)
    left.merge(right)
    pooled = batches[0]
    for batch in batches[1:]:
        pooled = pooled.merge(batch)
    torch.testing.assert_close(left.relative_error(pooled), residual_error(batches, pooled), rtol=1e-6, atol=1e-9)


def test_standard_error_matches_the_spread_of_repetitions() -> None:
    torch.manual_seed(0)
    variances, errors = [], []
    for _ in range(300):
        pooled, spread = None, Spread()
        for _ in range(20):
            batch = batch_moments(torch.randn(32, 1) * 2 + 5)
            spread.add(batch)
            pooled = batch if pooled is None else pooled.merge(batch)
        variances.append(pooled.biased)
        errors.append(spread.relative_error(pooled))
    actual = torch.cat(variances).std() / 4
    # The error itself is known to 1 / sqrt(2 · 300) = 4 %.
    assert float(torch.cat(errors).square().mean().sqrt() / actual) == pytest.approx(1, abs=0.15)


def test_standard_error_is_unknown_from_one_batch_and_zero_for_a_constant() -> None:
    spread, constant = Spread(), batch_moments(torch.full((8, 2), 0.1))
    spread.add(constant)
    assert spread.relative_error(constant).isnan().all()
    spread.add(constant)
    assert (spread.relative_error(constant.merge(constant)) == 0).all()
