"""Test compat/harmless_warnings.py."""

import importlib
import warnings

import pytest

from highrank_plugins.compat import harmless_warnings
from tests.compat.conftest import run_training, translation_options


def warnings_of_a_training(data, save_dir, filtered: bool) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if filtered:
            importlib.reload(harmless_warnings)
        run_training(data, save_dir, *translation_options())
    return [str(warning.message) for warning in caught]


def test_a_run_prints_no_warnings(data, tmp_path):
    assert warnings_of_a_training(data, tmp_path, filtered=True) == []


def test_other_warnings_are_shown():
    importlib.reload(harmless_warnings)
    with pytest.warns(UserWarning, match="the loss is odd"):
        warnings.warn("the loss is odd", stacklevel=1)
