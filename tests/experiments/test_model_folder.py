"""A model goes into a folder without pickle and comes back the same."""

import json
from pathlib import Path

import pytest

from highrank_plugins.experiments.model_folder import export_model, import_model
from tests.fairseq_cli import run
from tests.tiny_corpus import joined_data  # noqa: F401  (a fixture)
from tests.trainings import last, parameters, same, train


@pytest.fixture(scope="module")
def checkpoint(joined_data, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("model")
    train(joined_data, folder, "transformer_mixtape_tiny", 4, "--share-all-embeddings")
    return last(folder)


@pytest.fixture(scope="module")
def folder(checkpoint):
    folder = checkpoint.parent / "published"
    export_model(checkpoint, folder, None, "MIT")
    return folder


def test_the_checkpoint_comes_back_with_equal_tensors_tied_as_before(checkpoint, folder, tmp_path):
    import_model(folder, tmp_path / "back.pt")
    before, after = parameters(checkpoint), parameters(tmp_path / "back.pt")
    assert same(before, after)
    tied = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    tied.append("decoder.output_projection.weight")
    assert len({after[name].data_ptr() for name in tied}) == 1
    others = {after[name].data_ptr() for name in after if name not in tied}
    assert len(others) == len({before[name].data_ptr() for name in before if name not in tied})


def test_what_comes_back_translates_alike(joined_data, checkpoint, folder, tmp_path):  # noqa: F811
    import_model(folder, tmp_path / "back.pt")
    outputs = [
        run("generate", joined_data, "--path", path, "--max-len-b", 10).lines("H-")
        for path in (checkpoint, tmp_path / "back.pt")
    ]
    assert len(outputs[0]) == 20
    assert outputs[0] == outputs[1]


def test_the_folder_is_whole_and_tells_no_paths(folder):
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors", "config.json", "README.md", "dict.en.txt", "dict.de.txt",
    }  # fmt: skip
    header = (folder / "model.safetensors").read_bytes()[:8]
    size = int.from_bytes(header, "little")
    names = json.loads((folder / "model.safetensors").read_bytes()[8 : 8 + size])
    assert json.loads(names["__metadata__"]["tied"]).keys() == {
        "decoder.embed_tokens.weight", "decoder.output_projection.weight",
    }  # fmt: skip
    assert str(folder.parent) not in (folder / "config.json").read_text()
    card = (folder / "README.md").read_text()
    assert "license: MIT" in card
    assert "| `--head-components` | 4 |" in card
    assert "--source-lang en --target-lang de" in card


def test_a_folder_that_exists_is_left_alone(checkpoint, folder):
    with pytest.raises(FileExistsError, match="exists: give another --output"):
        export_model(checkpoint, folder, None, "MIT")


def test_dictionaries_must_be_found(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="--data DIR"):
        export_model(checkpoint, tmp_path / "out", tmp_path, "MIT")
    assert not (tmp_path / "out").exists()


def copy_with(folder: Path, to: Path, name: str, content: bytes) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(content if path.name == name else path.read_bytes())
    return to


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{}", "not of `highrank export`"),
        ("config.json", b'{"format": 99}', "format 99"),
        ("model.safetensors", b"short", "model.safetensors is damaged"),
    ],
)
def test_a_damaged_folder_is_refused(folder, tmp_path, name, content, message):
    damaged = copy_with(folder, tmp_path / "copy", name, content)
    with pytest.raises(ValueError, match=message):
        import_model(damaged, tmp_path / "back.pt")
    assert not (tmp_path / "back.pt").exists()
