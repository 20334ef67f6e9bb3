"""A component is reported once it has collapsed."""

import torch

from highrank_plugins.models.head_monitor import CollapseWatch

HEALTHY = torch.tensor([0.5, 0.3, 0.2])
DYING = torch.tensor([0.6, 0.399, 0.001])  # the last one has .3 % of an equal share


def seen(watch, *uses):
    return [watch.see(use) for use in uses]


def test_a_component_is_reported_once_when_the_window_is_full():
    assert seen(CollapseWatch(3), *[DYING] * 5) == [[], [], [2], [], []]


def test_the_mean_over_the_window_counts():
    assert seen(CollapseWatch(2), HEALTHY, DYING, DYING, DYING) == [[], [], [2], []]


def test_one_per_cent_of_an_equal_share_is_the_threshold():
    above, below = (torch.tensor([1 - x, x]) for x in (0.00501, 0.00499))
    assert seen(CollapseWatch(1), above, below) == [[], [1]]


def test_a_component_is_reported_again_after_recovery():
    assert seen(CollapseWatch(1), DYING, HEALTHY, DYING) == [[2], [], [2]]


def test_each_component_is_reported_separately():
    both = torch.tensor([0.999, 0.0005, 0.0005])
    assert seen(CollapseWatch(1), DYING, both) == [[2], [1]]
