"""Values that no op computed from the inputs."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from unitvar.graph import Value
from unitvar.moments.known import Numbers


def test_numbers_are_taken_from_where_they_are_to_the_cpu() -> None:
    with FakeTensorMode():  # has CUDA on any machine
        parameter = torch.empty(8, device="cuda")
        value = Value("parameter", parameter)
        value.tensor = parameter
        found = Numbers()(value)
    assert found is not None
    assert found.device.type == "cpu"
