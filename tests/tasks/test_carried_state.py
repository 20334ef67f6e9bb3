"""The state that is carried from chunk to chunk, without a model."""

import torch

from highrank_plugins.tasks.carried_state import CarriedState


def compute(carried: CarriedState, position: int, length: int, value: float) -> None:
    """Return a chunk of one stream, whose state is `value` after it."""
    batch = {"position": position, "target": torch.zeros(1, length, dtype=torch.long)}
    batch["net_input"] = {}
    carried.give(batch)
    carried.take(batch | {"next_state": [torch.full((1, 1), value)]})


def test_a_new_epoch_forgets_the_end_of_the_previous_one():
    carried = CarriedState()
    for position, value in ((0, 1.0), (4, 2.0)):
        compute(carried, position, 4, value)
        carried.settle()
    compute(carried, 0, 3, 7.0)
    carried.settle()
    assert carried.position == 3
    assert carried.states[3][0].item() == 7.0
