"""A model goes into a folder without pickle and comes back the same; damaged ones do not."""

import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from highrank_plugins.common.files import checksum
from highrank_plugins.reports.model_card import model_card
from highrank_plugins.reports.model_folder import certify, export_model, import_model
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


def test_the_checkpoint_comes_back_and_translates_as_before(
    joined_data, checkpoint, folder, tmp_path
):
    import_model(folder, tmp_path / "back.pt")
    before, after = parameters(checkpoint), parameters(tmp_path / "back.pt")
    assert same(before, after)
    beside = (tmp_path / "back.certificate.json").read_text()  # which generation compares
    assert beside == (folder / "certificate.json").read_text()
    tied = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    tied.append("decoder.output_projection.weight")
    assert len({after[name].data_ptr() for name in tied}) == 1
    others = {after[name].data_ptr() for name in after if name not in tied}
    assert len(others) == len({before[name].data_ptr() for name in before if name not in tied})
    one, other = (
        run("generate", joined_data, "--path", path, "--max-len-b", 10).lines("H-")
        for path in (checkpoint, tmp_path / "back.pt")
    )
    assert len(one) == 20 and one == other
    assert certify(folder) == f"{folder}: computes what was certified"
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "certificate.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"copy.*certificate\.json"):
        certify(copy)


def test_the_folder_is_complete_and_readable_and_reveals_no_paths(
    checkpoint, folder, joined_data, tmp_path
):
    files = {"model.safetensors", "config.json", "certificate.json", "dict.en.txt", "dict.de.txt"}
    assert {path.name for path in folder.iterdir()} == files | {"README.md"}
    header = (folder / "model.safetensors").read_bytes()[:8]
    size = int.from_bytes(header, "little")
    names = json.loads((folder / "model.safetensors").read_bytes()[8 : 8 + size])
    assert json.loads(names["__metadata__"]["tied"]).keys() == {
        "decoder.embed_tokens.weight", "decoder.output_projection.weight",
    }  # fmt: skip
    assert str(folder.parent) not in (folder / "config.json").read_text()
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # readable for all
    card = (folder / "README.md").read_text()
    assert "license: MIT" in card
    assert "| `--head-components` | 4 |" in card
    assert "--source-lang en --target-lang de" in card
    # a training run without --source-lang and --target-lang saves none
    state = torch.load(checkpoint)
    state["cfg"]["task"]["source_lang"] = state["cfg"]["task"]["target_lang"] = None
    torch.save(state, tmp_path / "inferred.pt")
    export_model(tmp_path / "inferred.pt", tmp_path / "out", joined_data, "MIT")
    again = (tmp_path / "out" / "README.md").read_text()
    assert "from en to de" in again and "--source-lang en --target-lang de" in again
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["fairseq"]["task"]["target_lang"] == "de"


@pytest.mark.parametrize("streams", [False, True])
def test_the_card_of_a_language_model_has_a_command_that_scores(
    lm_data, stream_data, tmp_path, streams
):
    if streams:
        train_streams(data := stream_data, tmp_path, "--max-update", 1)
    else:
        train(data := lm_data, tmp_path, "transformer_lm_mos", 1)
    folder, imported = tmp_path / "published", tmp_path / "published.pt"
    export_model(last(tmp_path), folder, None, "MIT")
    import_model(folder, imported)
    (line,) = re.findall("^fairseq-eval-lm .*", (folder / "README.md").read_text(), re.MULTILINE)
    line = line.replace("--user-dir $(highrank --user-dir) ", "")  # `run` gives it
    places = {"DATA_BIN": data, imported.name: imported}
    command, *words = (places.get(word, word) for word in line.split())
    done = run(command.removeprefix("fairseq-"), *words, "--num-workers", 0)
    assert "Perplexity" in done.output
    words = swapped(data, tmp_path, "dict.txt", source="dict.txt")
    with pytest.raises(ValueError, match="is not the dictionary that the checkpoint"):
        export_model(last(tmp_path), tmp_path / "out", words, "MIT")


def test_with_pieces_the_card_translates_plain_text(checkpoint, joined_data, tmp_path):
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


def swapped(data, to, *names, source="dict.en.txt"):
    """Copy a dictionary with two words exchanged."""
    first, second, *rest = (data / source).read_text().splitlines(keepends=True)
    for name in names:
        (to / name).write_text("".join([second, first, *rest]))
    return to


def written(path, content):
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    return path


def linked(data, to, name):
    """Copy data with a link to a private file."""
    copy = shutil.copytree(data, to / "bin")
    written(to / "secret", b"password 7")
    (copy / name).symlink_to(to / "secret")
    return copy


# the option of export_model that is wrong, its value from (checkpoint, data, an empty folder), and
# the message
EXPORTS = [
    ("checkpoint", lambda c, d, to: written(to / "a.pt", {"model": {"a": torch.zeros(1)}}),
     r"a\.pt is not a training checkpoint: it lacks"),
    ("data", lambda c, d, to: to, "run as --data"),
    ("data", lambda c, d, to: swapped(d, to, "dict.txt"), r"dict\.en\.txt: no such file. A check"),
    ("data", lambda c, d, to: swapped(d, to, "dict.en.txt", "dict.de.txt"),
     "is not the dictionary that the checkpoint was trained with"),
    ("pieces", lambda c, d, to: written(to / "a.model", b"\n\x0e"), "no model of SentencePiece"),
    *(("pieces", lambda c, d, to, codes=codes: written(to / "codes", b"#version: 0.2\n" + codes),
       "did not split the text of this model") for codes in (b"", b"q z</w>\n")),
    ("pieces", lambda c, d, to: linked(d, to, "pieces.model") / "pieces.model",
     r"pieces\.model is a symbolic link"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "message"), EXPORTS)
def test_what_is_not_fit_to_publish_is_refused(
    checkpoint, joined_data, tmp_path, option, value, message
):
    (tmp_path / "other").mkdir()
    options = {"checkpoint": checkpoint, "data": joined_data, "licence": "MIT"}
    options[option] = value(checkpoint, joined_data, tmp_path / "other")
    with pytest.raises((OSError, ValueError), match=message):
        export_model(folder=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_what_exists_is_left_alone_and_a_full_disk_is_reported(
    checkpoint, folder, tmp_path, monkeypatch
):
    with pytest.raises(FileExistsError, match="exists: give another --output"):
        export_model(checkpoint, folder, None, "MIT")
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "thesis").touch()
    with pytest.raises(FileExistsError, match="it is in the way"):
        export_model(checkpoint, tmp_path / "out", None, "MIT")
    assert (tmp_path / "out.part" / "thesis").exists()
    written(tmp_path / "mine.pt", b"mine")
    with pytest.raises(FileExistsError, match=r"mine\.pt exists: give another --output"):
        import_model(folder, tmp_path / "mine.pt")
    assert (tmp_path / "mine.pt").read_text() == "mine"

    def fail(*args):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be written: No space left"):
        export_model(checkpoint, tmp_path / "full", None, "MIT")
    assert not (tmp_path / "full").exists()


def config_with(**changes):
    """Return a change of the configuration; `model__X` is one of the model's options."""

    def change(config):
        for key, value in changes.items():
            part, _, name = key.rpartition("__")
            (config["fairseq"][part] if part else config)[name] = value
        return json.dumps(config).encode()

    return change


def last_bit(content):
    return content[:-1] + bytes([content[-1] ^ 1])


# file, its new content (bytes, or a function of its content or configuration), and the message
IMPORTS = [
    ("config.json", b"{}", "not written by `highrank model export`"),
    ("config.json", b"[" * 100_000, "config.json: not JSON"),
    ("dict.en.txt", last_bit, "copy/dict.en.txt: its sha256 is .* but should be"),
    # would be built for hours
    ("", config_with(model__decoder_layers=10**9), "copy is refused: .*decoder_layers 1000000000"),
    *(("", config_with(**{name: "x"}), "not written by .* or was changed")
      for name in ("fairseq", "training", "task_state", "sha256", "valid_loss")),
    ("", config_with(sha256={"../x": "0"}), "model.safetensors: its sha256 is .* in config.json"),
    ("certificate.json", b"{}", "copy/certificate.json: its sha256 is .* but should be"),
    ("", config_with(model__head_context_scale=2.0), "copy/certificate.json: .* another function"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), IMPORTS)
def test_a_damaged_folder_is_refused(folder, tmp_path, name, content, message):
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / (name or "config.json")
    if callable(content):
        content = content(path.read_bytes() if name else json.loads(path.read_text()))
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        import_model(copy, tmp_path / "back.pt")
    assert not (tmp_path / "back.pt").exists()


def filled(value, dtype=torch.float32):
    """Return a change of the first tensor, whose entries all become a value."""

    def change(tensors):
        name = next(iter(tensors))
        return tensors | {name: torch.full_like(tensors[name], value, dtype=dtype)}

    return change


@pytest.mark.parametrize(("change", "tied", "message"), [
    (filled(math.nan), "{}", "safetensors: .* infinite numbers or NaN"),
    (filled(1, torch.int32), "{}", "safetensors: .* has dtype torch.int32; expected floating"),
    (dict, "[]", "copy describes a model that cannot be built here"),
])  # fmt: skip
def test_bad_weights_are_refused_even_with_their_checksum(folder, tmp_path, change, tied, message):
    copy = shutil.copytree(folder, tmp_path / "copy")
    path, config = copy / "model.safetensors", json.loads((folder / "config.json").read_text())
    if change is None:
        path.write_bytes(b"short")
    else:
        save_file(change(load_file(path)), path, {"tied": tied})
    config["sha256"][path.name] = checksum(path)
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        import_model(copy, tmp_path / "back.pt")


def test_hostile_names_change_neither_the_page_nor_its_commands():
    model = {"head": "![a](http://b)", "head_`<i>": "<u>`<img>`", "arch": "x`]\nlicense: mine"}
    task = {"_name": "translation", "source_lang": "en; touch OWNED", "target_lang": "d|e\n<b>"}
    fairseq = {"common": {"user_dir": "a b\n```\n<img src=x>"}, "task": task, "model": model}
    config = {"fairseq": fairseq, "valid_loss": None, "training": {"num_updates": 1}}
    config["versions"], name = {"highrank_plugins": "1"}, "$(touch OWNED)"
    page = model_card(name, config, 1, [Path("dict.`.txt")], [], "MIT\nname: x")
    code = page.partition("```bash\n")[2].partition("\n```")[0]
    words = shlex.split(code)
    assert words[:6] == ["highrank", "model", "import", name, "--output", f"{name}.pt"]
    assert "en; touch OWNED" in words and "d|e <b>" in words
    assert words[words.index("--user-dir") + 1] == "a b <img src=x>"
    tags = ["translation", "x`]\nlicense: mine"]
    head = {"library_name": "fairseq", "license": "MIT\nname: x", "tags": tags}
    assert yaml.safe_load(page.split("---\n")[1]) == head
    shown = re.sub(r"`[^`]*`", "", page.split("---\n", 2)[2].replace(f"```bash\n{code}\n```", ""))
    assert not re.search(r"<(b|i|u|img)|!\[", shown)
