"""Test hooks/ignored_lm_path.py."""

from types import SimpleNamespace

import pytest
from fairseq_cli import interactive

import highrank_plugins.hooks.ignored_lm_path  # noqa: F401  (importing it applies the repair)
from highrank_plugins.common.user_error import UserError


@pytest.mark.parametrize("section", [True, False])
def test_a_language_model_that_would_be_ignored_is_refused(section):
    options = SimpleNamespace(lm_path="lm.pt")
    with pytest.raises(UserError, match="--lm-path has no effect in fairseq-interactive"):
        interactive.main(SimpleNamespace(generation=options) if section else options)
