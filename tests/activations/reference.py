"""Activations and their Gaussian moments in 30-digit arithmetic, written down independently of the library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpmath import mp, mpf
from torch import nn

Function = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Reference:
    """An activation, its f and f' in mpmath, and where they are not smooth."""

    fn: str | nn.Module
    f: Function
    df: Function
    breaks: Sequence[float] = ()


def _phi(x: mpf) -> mpf:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def _sigmoid(x: mpf) -> mpf:
    return 1 / (1 + mp.exp(-x))


def _gelu_tanh(x: mpf) -> mpf:
    return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x**3)))


def _gelu_tanh_slope(x: mpf) -> mpf:
    c = mp.sqrt(2 / mp.pi)
    u = mp.tanh(c * (x + mpf("0.044715") * x**3))
    return (1 + u) / 2 + x / 2 * (1 - u * u) * c * (1 + 3 * mpf("0.044715") * x * x)


def _mish_slope(x: mpf) -> mpf:
    t = mp.tanh(mp.log1p(mp.exp(x)))
    return t + x * (1 - t * t) * _sigmoid(x)


def _elu(alpha: float = 1.0, rate: float = 1.0, scale: mpf | float = 1.0) -> tuple[Function, Function]:
    return (
        lambda x: scale * (x if x > 0 else alpha * mp.expm1(rate * x)),
        lambda x: scale * (1 if x > 0 else alpha * rate * mp.exp(rate * x)),
    )


_SELU = mpf("1.0507009873554804934193349852946"), mpf("1.6732632423543772848170429916717")

REFERENCES = [
    Reference("identity", lambda x: x, lambda x: mpf(1)),
    Reference("relu", lambda x: max(x, mpf(0)), lambda x: mpf(x > 0), [0]),
    Reference("relu6", lambda x: min(max(x, mpf(0)), mpf(6)), lambda x: mpf(0 < x < 6), [0, 6]),
    Reference("leaky_relu", lambda x: max(x, x * mpf(0.01)), lambda x: mpf(1 if x > 0 else 0.01), [0]),
    Reference(nn.PReLU(), lambda x: max(x, x / 4), lambda x: mpf(1 if x > 0 else 0.25), [0]),
    Reference("elu", *_elu(), [0]),
    Reference(nn.ELU(0.5), *_elu(0.5), [0]),
    Reference(nn.CELU(0.25), *_elu(0.25, 4.0), [0]),
    Reference("selu", *_elu(_SELU[1], 1.0, _SELU[0]), [0]),
    Reference("gelu", lambda x: x * mp.ncdf(x), lambda x: mp.ncdf(x) + x * _phi(x)),
    Reference("gelu_tanh", _gelu_tanh, _gelu_tanh_slope),
    Reference("silu", lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    Reference("mish", lambda x: x * mp.tanh(mp.log1p(mp.exp(x))), _mish_slope),
    Reference("tanh", mp.tanh, lambda x: 1 - mp.tanh(x) ** 2),
    Reference("sigmoid", _sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x))),
    Reference("softplus", lambda x: mp.log1p(mp.exp(x)), _sigmoid),
    Reference("logsigmoid", lambda x: -mp.log1p(mp.exp(-x)), lambda x: _sigmoid(-x)),
    Reference("softsign", lambda x: x / (1 + abs(x)), lambda x: 1 / (1 + abs(x)) ** 2, [0]),
    Reference("tanhshrink", lambda x: x - mp.tanh(x), lambda x: mp.tanh(x) ** 2),
    Reference("hardtanh", lambda x: min(max(x, mpf(-1)), mpf(1)), lambda x: mpf(-1 < x < 1), [-1, 1]),
    Reference("hardsigmoid", lambda x: min(max(x / 6 + 0.5, mpf(0)), mpf(1)), lambda x: mpf(-3 < x < 3) / 6, [-3, 3]),
    Reference(
        "hardswish",
        lambda x: x * min(max(x + 3, mpf(0)), mpf(6)) / 6,
        lambda x: mpf(0) if x < -3 else (mpf(1) if x > 3 else (2 * x + 3) / 6),
        [-3, 3],
    ),
    Reference("hardshrink", lambda x: x * (abs(x) > 0.5), lambda x: mpf(abs(x) > 0.5), [-0.5, 0.5]),
    Reference("softshrink", lambda x: mp.sign(x) * max(abs(x) - 0.5, mpf(0)), lambda x: mpf(abs(x) > 0.5), [-0.5, 0.5]),
    Reference(nn.Threshold(0.3, -2.0), lambda x: x if x > mpf(0.3) else mpf(-2), lambda x: mpf(x > mpf(0.3)), [0.3]),
    Reference("sin", mp.sin, mp.cos),
    Reference("erf", mp.erf, lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-x * x)),
]


def moments(reference: Reference, mean: float, std: float) -> tuple[mpf, mpf, mpf]:
    """E f, E f², E f'² by tanh-sinh quadrature on the pieces, to 30 digits."""
    mean, std = mpf(mean), mpf(std)
    with mp.workdps(30):
        edges = {mpf(t) for t in (-14, -6, -2, 0, 2, 6, 14)}
        edges |= {(mpf(b) - mean) / std for b in (*reference.breaks, -2, 0, 2)}
        edges = sorted(t for t in edges if -14 <= t <= 14)

        def integral(g: Function) -> mpf:
            return mp.quad(lambda t: g(mean + std * t) * _phi(t), edges, method="gauss-legendre")

        return (
            integral(reference.f),
            integral(lambda x: reference.f(x) ** 2),
            integral(lambda x: reference.df(x) ** 2),
        )
