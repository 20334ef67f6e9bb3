"""Memory that nobody wrote shows: `torch.empty` gives NaN while losses are tested."""

import pytest
import torch


@pytest.fixture(autouse=True)
def nan_in_unwritten_memory():
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
