"""Test hooks/inexact_resume.py."""

import logging
from shlex import split

import pytest

import highrank_plugins.hooks.inexact_resume  # noqa: F401  (importing it applies the repair)
from tests.compat.conftest import run_training, translation_options


@pytest.mark.parametrize(
    ("flags", "times"),
    [
        ("--fp16 --fp16-no-flatten-grads", 1),
        ("--fp16 --fp16-no-flatten-grads --no-save", 0),
        ("--memory-efficient-fp16", 0),
        ("", 0),
    ],
)
def test_a_run_that_does_not_resume_exactly_says_so_once(data, tmp_path, caplog, flags, times):
    caplog.set_level(logging.INFO)
    for updates in (1, 2):
        caplog.clear()
        words = translation_options(**{"--max-update": updates})
        if "--no-save" in flags:
            with pytest.raises(FileNotFoundError):
                run_training(data, tmp_path, *words, *split(flags))
        else:
            run_training(data, tmp_path, *words, *split(flags))
        assert caplog.text.count("does not resume exactly") == times
