"""Test compat/harmless_warnings.py."""

import importlib
import warnings

from highrank_plugins.compat import harmless_warnings
from tests.compat.conftest import run_training, translation_options


def test_a_run_prints_no_warnings_but_others_are_shown(data, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        importlib.reload(harmless_warnings)
        run_training(data, tmp_path, *translation_options())
        assert [str(warning.message) for warning in caught] == []
        warnings.warn("the loss is odd", stacklevel=1)
        assert len(caught) == 1
