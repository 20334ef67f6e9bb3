"""An exported folder has the dictionaries of its checkpoint, or is refused."""

import shutil

import pytest
import torch

from highrank_plugins.reports.model_folder import export_model
from tests.trainings import last, train


@pytest.fixture(scope="module")
def checkpoint(joined_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    train(joined_data, folder, "transformer_mixtape_tiny", 4, "--share-all-embeddings")
    return last(folder)


def test_dictionaries_must_be_found(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="run as --data"):
        export_model(checkpoint, tmp_path / "out", tmp_path, "MIT")
    assert not (tmp_path / "out").exists()


def test_no_dictionary_of_the_run_may_be_missing(checkpoint, joined_data, tmp_path):
    shutil.copy(joined_data / "dict.en.txt", tmp_path / "dict.txt")  # that of another model
    with pytest.raises(ValueError, match=r"dict\.en\.txt is missing, the source dictionary"):
        export_model(checkpoint, tmp_path / "out", tmp_path, "MIT")
    shutil.copy(joined_data / "dict.en.txt", tmp_path)
    with pytest.raises(ValueError, match=r"dict\.de\.txt is missing, the target dictionary"):
        export_model(checkpoint, tmp_path / "out", tmp_path, "MIT")
    state = torch.load(checkpoint)
    state["cfg"]["task"]["source_lang"] = state["cfg"]["task"]["target_lang"] = None
    torch.save(state, tmp_path / "inferred.pt")
    for name in ("dict.txt", "dict.en.txt"):
        lines = (joined_data / "dict.en.txt").read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(ValueError, match="is not the source dictionary"):
        export_model(tmp_path / "inferred.pt", tmp_path / "out", tmp_path, "MIT")
    assert not (tmp_path / "out").exists()


def test_dictionaries_must_be_those_of_the_run(checkpoint, joined_data, tmp_path):
    for path in joined_data.glob("dict.*.txt"):
        lines = path.read_text().splitlines(keepends=True)
        lines[4:6] = lines[5], lines[4]
        (tmp_path / path.name).write_text("".join(lines))
    with pytest.raises(ValueError, match="is not the source dictionary that the checkpoint"):
        export_model(checkpoint, tmp_path / "out", tmp_path, "MIT")
    assert not (tmp_path / "out").exists()


def test_the_dictionary_of_a_language_model_is_compared_too(lm_data, tmp_path):
    train(lm_data, tmp_path, "transformer_lm_softmax", 1)
    lines = (lm_data / "dict.txt").read_text().splitlines(keepends=True)
    (tmp_path / "dict.txt").write_text("".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(ValueError, match=r"dict\.txt is not the source dictionary"):
        export_model(last(tmp_path), tmp_path / "out", tmp_path, "MIT")
