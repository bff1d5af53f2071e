"""Names of dimensions through views: what is merged can be split again."""

import math

from hypothesis import given
from hypothesis import strategies as st

from unitvar.moments.axes import default, features_in, label, normalised, viewed

SIZES = st.sampled_from([2, 3, 4, 6, 8, 12])


# Examples come first, if there are any.
NAMES = st.builds(
    lambda b, rest: b + "".join(rest),
    st.sampled_from(["b", ""]),
    st.lists(st.sampled_from("fp"), min_size=1, max_size=4),
)
TENSORS = NAMES.flatmap(lambda names: st.tuples(st.just(names), st.tuples(*[SIZES] * len(names))))
Tensor = tuple[str, tuple[int, ...]]


def merged(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Merge neighbouring dimensions at random."""
    found = [shape[0]]
    for size in shape[1:]:
        if draw(st.booleans()):
            found[-1] *= size
        else:
            found.append(size)
    return tuple(found)


def split(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Split dimensions in two at random."""
    found: list[int] = []
    for size in shape:
        first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        found += [first, size // first] if 1 < first < size else [size]
    return tuple(found)


@given(st.data(), TENSORS)
def test_a_split_after_a_merge_gives_names_and_origins_back(data: st.DataObject, tensor: Tensor) -> None:
    names, shape = tensor
    inside = normalised(names, shape, ())
    for _ in range(3):
        other = merged(data.draw, shape)
        axes, within = viewed(inside, other)
        assert len(axes) == len(other)
        assert viewed(within, shape) == (names, inside)


@given(st.data(), TENSORS)
def test_a_merge_after_a_split_gives_names_back(data: st.DataObject, tensor: Tensor) -> None:
    names, shape = tensor
    inside = normalised(names, shape, ())
    for _ in range(3):
        other = merged(data.draw, split(data.draw, shape))
        _, within = viewed(inside, other)
        assert viewed(within, shape)[0] == names


@given(st.data(), TENSORS)
def test_a_view_neither_makes_nor_loses_features(data: st.DataObject, tensor: Tensor) -> None:
    """Features and positions may be cut anew by every view; examples, whose parts are called positions, are not cut."""
    names, shape = tensor
    inside, whole = normalised(names, shape, ()), 1 if names.startswith("b") else 0
    features = math.prod(n for c, n in zip(names, shape, strict=True) if c == "f")
    for _ in range(4):
        other = merged(data.draw, (*shape[:whole], *split(data.draw, shape[whole:])))
        axes, inside = viewed(inside, other)
        assert features_in(inside) == features
        assert [math.prod(n for _, n in atoms) for atoms in inside] == list(other)
        assert axes == "".join(label(atoms) for atoms in inside)


@given(TENSORS, st.data())
def test_dimensions_of_one_come_and_go(tensor: Tensor, data: st.DataObject) -> None:
    names, shape = tensor
    inside = normalised(names, shape, ())
    at = data.draw(st.integers(0, len(shape)))
    axes, within = viewed(inside, (*shape[:at], 1, *shape[at:]))
    assert axes == names[:at] + "c" + names[at:]  # one number, whose copies a broadcast makes
    assert viewed(within, shape) == (names, inside)


@given(TENSORS, SIZES)
def test_a_shape_that_the_dimensions_do_not_explain_is_named_anew(tensor: Tensor, size: int) -> None:
    names, shape = tensor
    inside = normalised(names, shape, ())
    other = (5, *shape, size)  # more elements than there were: no view of it
    axes, within = viewed(inside, other)
    assert axes == default(other)
    assert within == normalised(axes, other, ())


@given(TENSORS)
def test_a_merged_dimension_is_named_for_examples_then_features(tensor: Tensor) -> None:
    names, shape = tensor
    inside = normalised(names, shape, ())
    (flat,), _ = viewed(inside, (math.prod(shape),))
    assert flat == next(c for c in "bfp" if c in names)
