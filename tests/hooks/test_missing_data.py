"""Test hooks/missing_data.py."""

from argparse import Namespace
from types import SimpleNamespace

import pytest

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.data_checks import check_data, load_dataset, splits_of
from tests.hooks.conftest import ours


def not_found(task, split):
    raise FileNotFoundError(f"Dataset not found: {split} (data-bin)")


def not_there(task, split):
    raise FileNotFoundError("elsewhere")


def options(task, source=None, target=None):
    return Namespace(task=task, source_lang=source, target_lang=target)


@pytest.fixture
def data(tmp_path):
    for name in ("dict.en.txt", "dict.de.txt", "train.en-de.en.idx", "train.en-de.de.idx"):
        (tmp_path / name).touch()
    return str(tmp_path)


def test_complete_data_is_accepted(data):
    check_data(options("translation"), data)
    check_data(options("translation", "en", "de"), data)
    check_data(options("masked_lm"), data)


def test_a_missing_directory_is_named(data):
    with pytest.raises(UserError, match=r"DATA .*other: no such directory\. Give the directory"):
        check_data(options("translation"), f"{data}:{data}/other")


def test_a_folder_without_binarised_data_is_refused(tmp_path):
    with pytest.raises(UserError, match="no sentence pairs, such as train"):
        check_data(options("translation"), str(tmp_path))


def test_a_missing_dictionary_is_named(data):
    with pytest.raises(UserError, match=r"--target-lang fr: .* dict.fr.txt.* of de, en\."):
        check_data(options("translation", "en", "fr"), data)


@pytest.mark.parametrize("task", ["language_modeling", "bptt_language_modeling"])
def test_a_language_model_needs_its_dictionary(data, task):
    with pytest.raises(UserError, match=r"no dict\.txt"):
        check_data(options(task), data)


def test_splits_are_listed(data, tmp_path):
    for name in ("test.idx", "valid1.en-de.de.idx", "dict.txt", "preprocess.log"):
        (tmp_path / name).touch()
    assert splits_of(data) == ["test", "train", "valid1"]


def test_a_missing_split_names_the_others(data):
    task = SimpleNamespace(args=SimpleNamespace(data=data))
    with pytest.raises(UserError, match=r"split dev is missing in .*\. It has train\."):
        ours(load_dataset)(not_found, task, "dev")


def test_another_missing_file_keeps_its_error(data):
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        ours(load_dataset)(not_there, SimpleNamespace(), "dev")
