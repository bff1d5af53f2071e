"""data: what is read is what was written."""

import pytest
import torch

from unitvar_reproduction import data


def test_digits_are_split_by_seed_and_standardised() -> None:
    train, test = data.digits(0)
    assert (len(train), len(test)) == (1000, 797)
    assert train.images.shape == (1000, 1, 8, 8)
    assert train.images.mean().item() == pytest.approx(0, abs=1e-5)
    assert train.images.std().item() == pytest.approx(1, abs=1e-5)
    again, _ = data.digits(0)
    other, _ = data.digits(1)
    assert torch.equal(train.labels, again.labels)
    assert not torch.equal(train.labels, other.labels)


def test_batches_give_every_example_once() -> None:
    images = data.Images(torch.arange(10.0).view(10, 1, 1, 1), torch.arange(10))
    plain = [labels for _, labels in images.batches(4)]
    assert [len(b) for b in plain] == [4, 4, 2]
    assert torch.cat(plain).tolist() == list(range(10))
    shuffled = [(x.flatten().tolist(), y.tolist()) for x, y in images.batches(4, torch.Generator().manual_seed(1))]
    assert all(x == y for x, y in shuffled)
    labels = [label for _, batch in shuffled for label in batch]
    assert sorted(labels) == list(range(10)) != labels


def test_a_split_is_disjoint_complete_and_drawn_by_seed() -> None:
    images = data.Images(torch.zeros(20, 1, 1, 1), torch.arange(20))
    held_out, rest = images.split(5, seed=1)
    assert len(held_out) == 5
    assert sorted((held_out.labels.tolist()) + rest.labels.tolist()) == list(range(20))
    assert torch.equal(held_out.labels, images.split(5, seed=1)[0].labels)
    assert not torch.equal(held_out.labels, images.split(5, seed=2)[0].labels)


def test_standardising_uses_the_training_images_alone() -> None:
    train = data.Images(torch.randn(50, 2, 3, 3) * 3 + 1, torch.zeros(50).long())
    other = data.Images(train.images[:10] + 6, torch.zeros(10).long())
    ours, shifted = data.standardised(train, other)
    assert ours.images.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert ours.images.std(dim=(0, 2, 3)).tolist() == pytest.approx([1, 1], rel=1e-6)
    scale = train.images.std(dim=(0, 2, 3))
    difference = (shifted.images - ours.images[:10]).mean(dim=(0, 2, 3))
    assert torch.allclose(difference, 6 / scale, rtol=1e-5)
