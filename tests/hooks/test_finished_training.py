"""Test hooks/finished_training.py."""

from fairseq_cli import train as training

import highrank_plugins.hooks.finished_training  # noqa: F401  (importing it applies the repair)
from tests.compat.conftest import run_training, translation_options


def updates(state: dict) -> int:
    return state["optimizer_history"][-1]["num_updates"]


def test_repeating_a_finished_run_changes_nothing(data, tmp_path):
    run_training(data, tmp_path, *translation_options())
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    assert updates(run_training(data, tmp_path, *translation_options())) == 2
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before


def test_a_higher_max_update_resumes_a_finished_run(data, tmp_path):
    run_training(data, tmp_path, *translation_options())
    further = run_training(data, tmp_path, *translation_options(**{"--max-update": 3}))
    assert updates(further) == 3


def test_stock_takes_one_more_update(data, tmp_path, stock):
    stock(training, "train")
    run_training(data, tmp_path, *translation_options())
    assert updates(run_training(data, tmp_path, *translation_options())) == 3
