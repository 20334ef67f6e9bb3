"""Systems that did not train have no test and tell nothing of others; wrong numbers are refused."""

import pytest

from tests.results.test_comparison import change, compare, records, write

__all__ = ["records"]


def test_runs_that_were_best_at_their_start_are_not_tested(records):
    """Test no layer that was not trained: its runs may be one number. A baseline may be such."""
    cost, start = (
        {"updates": 9, "words_per_second": 1},
        {"best_valid_loss": 4.0, "start_valid_loss": 4.0},
    )
    for path in records:
        change(path, train=cost | (start if path.name == "mos-2.json" else {}))
    found = compare(*map(str, records))
    assert "Not tested, since a run was best before its first update: mos." in found.output
    assert "**" not in found.output
    for path in records:
        change(path, train=cost | (start if "softmax" in path.name else {}))
    assert "**" in compare(*map(str, records)).output


def test_a_system_that_failed_to_train_does_not_widen_what_the_others_would_find(tmp_path):
    values = {"softmax": (60.0, 60.2, 60.4), "mos": (58.0, 58.2, 58.4), "mixtape": (60, 90, 400)}
    paths = [
        write(tmp_path / f"{name}-{seed}.json", value, seed)
        for name, own in values.items()
        for seed, value in enumerate(own, 1)
    ]
    found = compare(*map(str, paths)).output
    assert (
        "3 seeds would find a true difference of 0.75 in 80 % of studies, but for mixtape" in found
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["softmax=57:-.1:10", "mos=56,55"], "an SD of 0 or more and two runs or more"),
        (["softmax=57:.1:1", "mos=56,55"], "an SD of 0 or more and two runs or more"),
        (["softmax=57,inf", "mos=56,55"], "a run is not a finite number"),
        (
            ["softmax=-5,1", "mos=56,55", "--metric", "test_perplexity"],
            "softmax: test_perplexity is",
        ),
        (["softmax=57,58"], "softmax=57,58: give numbers of a baseline, then of other systems"),
        (["softmax=57,58", "mos=56,55", "--alpha", "0"], "alpha"),
        (["softmax=57,58", "mos=56,55", "--alpha", "1"], "alpha"),
    ],
)
def test_wrong_numbers_are_refused_in_a_line(words, why):
    found = compare(*words)
    assert found.exit_code == 2 and why in found.output
