"""Which parameter a tensor is a view of, or was computed from."""

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from unitvar.running.tracker import ParameterTracker


def test_a_view_is_known_with_its_part() -> None:
    packed = nn.Parameter(torch.randn(6, 4))
    tracker = ParameterTracker([("in_proj", packed)])
    q, k, _ = packed.chunk(3)
    assert tracker.owner(q.t()) == "in_proj"
    view = tracker.view(k)
    assert view is not None
    assert (view.name, view.size, view.stride, view.offset) == ("in_proj", (2, 4), (4, 1), 8)
    assert torch.equal(view.of(packed), packed[2:4])
    assert tracker.owner(torch.randn(6, 4)) is None
    assert tracker.view(torch.randn(6, 4)) is None


def test_parameters_that_share_a_storage_are_told_apart_and_the_rest_of_it_is_nobodys() -> None:
    flat = torch.randn(20)
    a, b = nn.Parameter(flat[:6].view(2, 3)), nn.Parameter(flat[6:12].view(3, 2))
    tracker = ParameterTracker([("a", a), ("b", b)])
    assert [tracker.owner(t) for t in (a[1], b.t(), b[2], flat[12:])] == ["a", "b", "b", None]
    assert tracker.chain(flat[12:]) == []


def test_a_parameter_with_gaps_owns_all_of_its_reach() -> None:
    columns = nn.Parameter(torch.randn(4, 6)[:, :3])
    tracker = ParameterTracker([("columns", columns), ("other", nn.Parameter(torch.randn(2)))])
    assert tracker.owner(columns[3]) == "columns"


def test_what_is_computed_belongs_to_the_largest_parameter() -> None:
    g, v, mask = nn.Parameter(torch.randn(3, 1)), nn.Parameter(torch.randn(3, 4)), torch.ones(3, 400)
    tracker = ParameterTracker([("g", g), ("v", v)])
    tracker.own(mask, "")
    made = g * v
    tracker.derive([made], [g, v])
    masked = made * mask[:, :4]
    tracker.derive([masked], [mask, made])
    assert [tracker.owner(t) for t in (made, masked[1], mask)] == ["v", "v", ""]
    assert tracker.view(made) is None
    tracker.forget()
    assert tracker.owner(made) is None
    assert tracker.owner(v) == "v"


def test_a_chain_leads_through_casts_to_the_parameter() -> None:
    w = nn.Parameter(torch.randn(4, 4))
    tracker = ParameterTracker([("w", w)])
    half = w.t().half()
    tracker.derive([half], [w.t()])
    single = half.float()
    tracker.derive([single], [half])
    chain = tracker.chain(single.t().view(16))
    assert [t.dtype for t in chain] == [torch.float32, torch.float16, torch.float32]
    view = tracker.view(chain[-1])
    assert view is not None
    assert view.stride == (1, 4)
    assert tracker.chain(single[:2]) == []  # a part of a cast: which part of the parameter that is, nobody knows


def test_tensors_without_data_shape_or_storage_are_no_trouble() -> None:
    meta, sparse = nn.Parameter(torch.empty(2, 2, device="meta")), torch.eye(2).to_sparse()
    tracker = ParameterTracker([("lazy", UninitializedParameter()), ("meta", meta), ("sparse", sparse)])
    assert tracker.owner(meta.t()) == "meta"
    assert tracker.owner(torch.empty(2, 2, device="meta")) is None
    assert tracker.owner(sparse) == "sparse"
