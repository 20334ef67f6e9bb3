"""A model goes into a folder without pickle and comes back the same."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from highrank_plugins.common.checksums import checksum
from highrank_plugins.common.user_error import UserError
from highrank_plugins.reports.model_folder import export_model, import_model
from tests.fairseq_cli import run
from tests.stream_corpus import train_streams
from tests.trainings import last, parameters, same, train


@pytest.fixture(scope="module")
def checkpoint(joined_data, tmp_path_factory):
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


def test_an_imported_model_translates_in_the_same_way(joined_data, checkpoint, folder, tmp_path):
    import_model(folder, tmp_path / "back.pt")
    outputs = [
        run("generate", joined_data, "--path", path, "--max-len-b", 10).lines("H-")
        for path in (checkpoint, tmp_path / "back.pt")
    ]
    assert len(outputs[0]) == 20
    assert outputs[0] == outputs[1]


def test_the_folder_is_complete_and_reveals_no_paths(folder):
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
    tensors = {key: value["shape"] for key, value in names.items() if key != "__metadata__"}
    sizes = {key: math.prod(shape) for key, shape in tensors.items()}
    marks = {key for key in sizes if sizes[key] == 1}
    assert {key.rpartition(".")[2] for key in marks} <= {"version", "_float_tensor"}
    assert f"| parameters | {sum(sizes.values()) - len(marks):,} |" in card
    assert "--source-lang en --target-lang de" in card


def test_the_card_of_a_language_model_has_a_command_that_scores(lm_data, tmp_path):
    train(lm_data, tmp_path, "transformer_lm_mos", 1)
    run_card(export(tmp_path), lm_data)


def test_the_card_of_a_model_of_streams_has_a_command_that_scores(stream_data, tmp_path):
    train_streams(stream_data, tmp_path, "--max-update", 1)
    run_card(export(tmp_path), stream_data)


def export(save_dir):
    export_model(last(save_dir), save_dir / "published", None, "MIT")
    return save_dir / "published"


def run_card(folder, data):
    """Check that the scoring command of a card gives a perplexity."""
    imported = folder.parent / "published.pt"
    import_model(folder, imported)
    (line,) = re.findall("^fairseq-eval-lm .*", (folder / "README.md").read_text(), re.MULTILINE)
    line = line.replace("--user-dir $(highrank user-dir) ", "")  # `run` gives it
    places = {"DATA_BIN": data, imported.name: imported}
    command, *words = (places.get(word, word) for word in line.split())
    done = run(command.removeprefix("fairseq-"), *words, "--num-workers", 0)
    assert "Perplexity" in done.output


def test_languages_that_fairseq_inferred_are_in_the_card(checkpoint, joined_data, tmp_path):
    """A training run without --source-lang and --target-lang saves none."""
    state = torch.load(checkpoint)
    state["cfg"]["task"]["source_lang"] = state["cfg"]["task"]["target_lang"] = None
    torch.save(state, tmp_path / "inferred.pt")
    export_model(tmp_path / "inferred.pt", tmp_path / "out", joined_data, "MIT")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "from en to de" in card and "--source-lang en --target-lang de" in card
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["fairseq"]["task"]["target_lang"] == "de"

    (tmp_path / "words").mkdir()
    for side in ("en", "de"):
        shutil.copy(joined_data / f"dict.{side}.txt", tmp_path / "words")
    export_model(tmp_path / "inferred.pt", tmp_path / "other", tmp_path / "words", "MIT")
    card = (tmp_path / "other" / "README.md").read_text()
    assert "--source-lang SOURCE_LANGUAGE --target-lang TARGET_LANGUAGE" in card


def test_all_files_have_the_same_permissions(folder):
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_a_file_that_is_not_a_training_checkpoint_is_refused(tmp_path):
    torch.save({"model": {"a": torch.zeros(1)}}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights\.pt is not a training checkpoint: it lacks"):
        export_model(tmp_path / "weights.pt", tmp_path / "model", None, "MIT")


def test_a_folder_that_exists_is_left_alone(checkpoint, folder):
    with pytest.raises(FileExistsError, match="exists: give another --output"):
        export_model(checkpoint, folder, None, "MIT")


def test_with_a_file_of_pieces_the_card_translates_plain_text(checkpoint, joined_data, tmp_path):
    lines = (joined_data / "dict.en.txt").read_text().splitlines()
    words = [line.split()[0] for line in lines]
    merges = [f"{word[0]} {word[1:]}</w>\n" for word in words if len(word) > 1]
    (tmp_path / "codes").write_text("".join(["#version: 0.2\n", *merges]))
    out = tmp_path / "out"
    export_model(checkpoint, out, None, "MIT", pieces=tmp_path / "codes")
    card = (out / "README.md").read_text()
    options = "--tokenizer moses_normalised --bpe subword_nmt --bpe-codes out/codes"
    assert (out / "codes").read_bytes() == (tmp_path / "codes").read_bytes()
    assert f"fairseq-interactive out --source-lang en --target-lang de {options}" in card
    assert "takes text as people write it" in card
    with (out / "codes").open("a") as file:
        file.write("x y\n")
    with pytest.raises(ValueError, match="codes"):
        import_model(out, tmp_path / "back.pt")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.model", b"\n\x0e", "is no model of SentencePiece"),
        ("codes", b"#version: 0.2\n", "did not split the text of this model"),
        ("codes", b"#version: 0.2\nq z</w>\n", "did not split the text of this model"),
    ],
)
def test_other_pieces_are_refused(checkpoint, tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=reason):
        export_model(checkpoint, tmp_path / "out", None, "MIT", pieces=tmp_path / name)
    assert not (tmp_path / "out").exists()


def test_a_file_that_does_not_define_pieces_is_refused(checkpoint, tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(ValueError, match=r"--pieces .*notes\.txt is neither a model"):
        export_model(checkpoint, tmp_path / "out", None, "MIT", pieces=tmp_path / "notes.txt")
    assert not (tmp_path / "out").exists()


def test_the_scores_of_a_record_are_in_the_card(checkpoint, tmp_path):
    record = tmp_path / "results.json"
    signatures = {"sacrebleu": "nrefs:1|tok:13a"}
    record.write_text(json.dumps({"metrics": {"sacrebleu": 38.04}, "signatures": signatures}))
    export_model(checkpoint, tmp_path / "out", None, "MIT", results=record)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| sacrebleu | 38.04 (nrefs:1, tok:13a) |" in card


def test_a_full_disk_is_reported(checkpoint, tmp_path, monkeypatch):
    def fail(*args):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be written: No space left"):
        export_model(checkpoint, tmp_path / "out", None, "MIT")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("linked", ["dict.zz.txt", "pieces.model"])
def test_a_link_to_a_private_file_is_not_published(checkpoint, joined_data, tmp_path, linked):
    data = shutil.copytree(joined_data, tmp_path / "bin")
    (tmp_path / "secret").write_text("password 7")
    (data / linked).symlink_to(tmp_path / "secret")
    pieces = data / linked if linked == "pieces.model" else None
    with pytest.raises(UserError, match=f"{linked} is a symbolic link"):
        export_model(checkpoint, tmp_path / "out", data, "MIT", pieces=pieces)
    assert not (tmp_path / "out").exists()


def test_a_users_folder_named_part_is_left_alone(checkpoint, tmp_path):
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "thesis").touch()
    with pytest.raises(FileExistsError, match="it is in the way"):
        export_model(checkpoint, tmp_path / "out", None, "MIT")
    assert (tmp_path / "out.part" / "thesis").exists()


def copy_with(folder: Path, to: Path, name: str, content: bytes) -> Path:
    shutil.copytree(folder, to)
    (to / name).write_bytes(content)
    return to


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{}", "not written by `highrank model export`"),
        ("config.json", b'{"format": 99}', "format 99"),
        ("config.json", b"[" * 100_000, "config.json was not written by `highrank model export`"),
        ("config.json", b'{"format": 1}', "config.json .*: it lacks fairseq, sha256, task_state"),
        ("config.json", b'{"format": 1, "dropout": NaN}', "config.json .* holds NaN"),
        ("model.safetensors", b"short", "model.safetensors: its sha256 is"),
    ],
)
def test_a_damaged_folder_is_refused(folder, tmp_path, name, content, message):
    damaged = copy_with(folder, tmp_path / "copy", name, content)
    with pytest.raises(ValueError, match=message):
        import_model(damaged, tmp_path / "back.pt")
    assert not (tmp_path / "back.pt").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "dict.en.txt"])
def test_a_changed_bit_is_found_by_the_checksum(folder, tmp_path, name):
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    damaged = copy_with(folder, tmp_path / "copy", name, bytes(content))
    with pytest.raises(ValueError, match=f"copy/{name}: its sha256 is .* but should be"):
        import_model(damaged, tmp_path / "back.pt")
    assert not (tmp_path / "back.pt").exists()


def with_weights(folder: Path, to: Path, *saved: object) -> Path:
    """Return a copy with other weights and their checksum: bytes, or what `save_file` takes."""
    copy = copy_with(folder, to, "model.safetensors", saved[0] if len(saved) == 1 else b"")
    if len(saved) > 1:
        save_file(saved[0], copy / "model.safetensors", saved[1])
    config = json.loads((folder / "config.json").read_text())
    config["sha256"]["model.safetensors"] = checksum(copy / "model.safetensors")
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_options_that_ask_for_more_than_the_weights_have_are_refused(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config["fairseq"]["model"]["decoder_layers"] = 10**9  # would be built for hours
    damaged = copy_with(folder, tmp_path / "copy", "config.json", json.dumps(config).encode())
    with pytest.raises(ValueError, match=r"copy is refused: .*decoder_layers 1000000000"):
        import_model(damaged, tmp_path / "back.pt")


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (torch.float32, float("nan"), "infinite numbers or NaN"),
        (torch.float32, float("inf"), "infinite numbers or NaN"),
        (torch.int32, 1, "has dtype torch.int32; expected floating point"),
    ],
)
def test_weights_that_are_not_finite_are_refused(folder, tmp_path, dtype, value, message):
    tensors = load_file(folder / "model.safetensors")
    name = next(iter(tensors))
    tensors[name] = torch.full_like(tensors[name], value, dtype=dtype)
    damaged = with_weights(folder, tmp_path / "copy", tensors, {"tied": "{}"})
    with pytest.raises(ValueError, match=f"model.safetensors: {re.escape(name)} .*{message}"):
        import_model(damaged, tmp_path / "back.pt")


def test_truncated_weights_are_refused_with_their_checksum(folder, tmp_path):
    damaged = with_weights(folder, tmp_path / "copy", b"short")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        import_model(damaged, tmp_path / "back.pt")


def test_a_list_of_tied_tensors_is_refused(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    damaged = with_weights(folder, tmp_path / "copy", tensors, {"tied": "[]"})
    with pytest.raises(ValueError, match=r"model\.safetensors: tied must be a mapping, not list"):
        import_model(damaged, tmp_path / "back.pt")


def test_an_existing_checkpoint_is_left_alone(folder, tmp_path):
    (tmp_path / "mine.pt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine\.pt exists: give another --output"):
        import_model(folder, tmp_path / "mine.pt")
    assert (tmp_path / "mine.pt").read_text() == "mine"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("training", [], "training must be a mapping, not list"),
        ("task_state", "x", "task_state must be a mapping, not str"),
        ("fairseq", [], "fairseq must be a mapping, not list"),
        ("fairseq", {"model": 1}, "fairseq.model must be a mapping, not int"),
        ("sha256", {"../x": "0"}, "sha256 must map files here to checksums"),
        ("sha256", {}, "sha256 lacks model.safetensors; export the model again"),
        ("valid_loss", "x", "valid_loss must be a number or null"),
    ],
)
def test_a_configuration_value_of_the_wrong_type_is_named_by_its_key(
    folder, tmp_path, key, value, message
):
    config = json.loads((folder / "config.json").read_text()) | {key: value}
    damaged = copy_with(folder, tmp_path / "copy", "config.json", json.dumps(config).encode())
    with pytest.raises(ValueError, match=f"config.json: {message}"):
        import_model(damaged, tmp_path / "back.pt")
