"""hooks/checkpoint_validation.py: nothing in a checkpoint is executed, damage is named."""

import argparse
import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from tests.compat.conftest import run_training, translation_options

ROOT = Path(__file__).parents[2]


class Call:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.fixture
def sentinel(tmp_path):
    """Return the path that every payload tries to create."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()


@pytest.fixture
def state(language_model) -> dict:
    return torch.load(language_model)


def load(path):
    return checkpoint_utils.load_model_ensemble_and_task([str(path)])


def test_undamaged_checkpoints_are_loaded(language_model, translator):
    for path in (language_model, translator):
        models, _, _ = load(path)
        assert len(models) == 1


PICKLED = {
    "os.system": lambda path: Call(os.system, f"touch {path}"),
    "eval": lambda path: Call(eval, f"open({str(path)!r}, 'w')"),
    "exec": lambda path: Call(exec, f"open({str(path)!r}, 'w')"),
    "open": lambda path: Call(open, str(path), "w"),
    "nested": lambda path: argparse.Namespace(x=[{"y": Call(os.system, f"touch {path}")}]),
}


@pytest.mark.parametrize("place", ["model", "cfg", "args", "extra_state", "task_state"])
@pytest.mark.parametrize("payload", PICKLED)
def test_pickled_calls_are_refused(payload, place, state, sentinel, tmp_path):
    state[place] = {"x": PICKLED[payload](sentinel)}
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=r"hostile\.pt is refused: it names"):
        load(tmp_path / "hostile.pt")


def test_an_old_file_is_converted_as_the_message_says(state, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = {**state, "args": argparse.Namespace(arch="transformer")}
    torch.save(old, "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"before torch 1\.6") as refused:
        load("old.pt")
    advice = str(refused.value).partition("from before torch 1.6: ")[2]
    assert advice in (ROOT / "docs" / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
    code = f"old, new = 'old.pt', 'new.pt'; {advice}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert checkpoint_utils.load_checkpoint_to_cpu("new.pt")["model"].keys() == old["model"].keys()


@pytest.mark.parametrize("payload", PICKLED)
def test_the_format_before_torch_1_6_is_refused(payload, state, sentinel, tmp_path):
    state["extra_state"] = PICKLED[payload](sentinel)
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"old\.pt is truncated, or is not a checkpoint"):
        load(tmp_path / "old.pt")


# configurations that stock fairseq passes to eval() while it builds the model
EVALUATED = {
    "adaptive_softmax_cutoff": {"_name": "transformer_lm", "adaptive_softmax_cutoff": "{}"},
    "character_filters": {
        "_name": "transformer_lm",
        "character_embeddings": True,
        "character_filters": "{}",
    },
    "decoder_layers": {"_name": "fconv_lm", "decoder_layers": "{}"},
    "decoder_attention": {
        "_name": "fconv_lm",
        "decoder_layers": "[(8, 3)]",
        "decoder_attention": "{}",
    },
}


def save_with_expression(state, field: str, sentinel, path) -> None:
    expression = f"[open({str(sentinel)!r}, 'w').close()]"
    for key, value in EVALUATED[field].items():
        state["cfg"]["model"][key] = expression if value == "{}" else value
    torch.save(state, path)


@pytest.mark.parametrize("field", EVALUATED)
def test_expressions_in_the_configuration_are_refused(field, state, sentinel, tmp_path):
    save_with_expression(state, field, sentinel, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match="not a plain literal"):
        load(tmp_path / "hostile.pt")


@pytest.mark.parametrize("field", EVALUATED)
def test_stock_runs_the_expressions(field, state, tmp_path, monkeypatch):
    for name, module in list(sys.modules.items()):
        if name.startswith("fairseq.") and "eval" in vars(module):
            monkeypatch.delattr(module, "eval")
    save_with_expression(state, field, tmp_path / "executed", tmp_path / "hostile.pt")
    with contextlib.suppress(Exception):  # fairseq may stumble over the result
        load(tmp_path / "hostile.pt")
    assert (tmp_path / "executed").exists()


def endless() -> dict:
    loop = {}
    loop["again"] = loop
    return loop


@pytest.mark.parametrize(
    "field, message",
    [
        ("${oc.env:HOME}", "omegaconf would resolve"),
        ({"deep": ["${..data}"]}, "omegaconf would resolve"),
        ({"${oc.env:HOME}": 1}, "omegaconf would resolve"),
        (argparse.Namespace(x="${common.seed}"), "omegaconf would resolve"),
        (torch.zeros(1), "holds a Tensor"),
        (endless(), "contains itself"),
    ],
    ids=["string", "nested", "key", "namespace", "tensor", "endless"],
)
@pytest.mark.parametrize("place", ["cfg", "args"])
def test_configurations_may_hold_only_plain_values(field, message, place, state, tmp_path):
    state[place] = {"task": {"data": field}}
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=rf"hostile\.pt is refused.*{message}"):
        load(tmp_path / "hostile.pt")


def test_sizes_larger_than_the_weights_are_refused(state, tmp_path):
    state["cfg"]["model"]["decoder_embed_dim"] = 10**7
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=r"decoder_embed_dim 10000000, but its weights are \d+ by"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "hostile.pt"))


def test_more_layers_than_weights_are_refused(state, tmp_path):
    state["cfg"]["model"]["decoder_layers"] = 10**9
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=r"decoder_layers 1000000000, but its weights are \d+ te"):
        load(tmp_path / "hostile.pt")


def test_sparse_weights_are_refused(state, tmp_path):
    state["model"] = {
        name: t.to_sparse() if t.dim() == 2 else t for name, t in state["model"].items()
    }
    torch.save(state, tmp_path / "sparse.pt")
    with pytest.raises(ValueError, match=r"sparse\.pt is refused: .*weight is a sparse tensor"):
        load(tmp_path / "sparse.pt")


def test_a_tensor_that_repeats_one_number_is_refused(state, tmp_path):
    name = next(name for name, t in state["model"].items() if t.dim() == 2)
    state["model"][name] = torch.zeros(1).expand(10**6, 10**6)
    torch.save(state, tmp_path / "wide.pt")
    with pytest.raises(ValueError, match=rf"wide\.pt is refused: {name} declares 4000000000000 by"):
        load(tmp_path / "wide.pt")


def test_embeddings_from_a_device_are_refused(state, tmp_path):
    state["cfg"]["model"]["decoder_embed_path"] = "/dev/zero"
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match="/dev/zero is a pipe or a device; a file is needed"):
        load(tmp_path / "hostile.pt")


def test_stock_resolves_interpolations(state, tmp_path, monkeypatch, stock):
    stock(checkpoint_utils, "load_checkpoint_to_cpu")
    monkeypatch.setenv("SECRET", "leaked")
    state["cfg"]["task"]["data"] = "${oc.env:SECRET}"
    torch.save(state, tmp_path / "hostile.pt")
    loaded = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "hostile.pt"))
    assert loaded["cfg"].task.data == "leaked"


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_truncated_files_are_refused(kept, language_model, tmp_path):
    content = language_model.read_bytes()
    length = int(kept * len(content)) if isinstance(kept, float) else kept
    (tmp_path / "short.pt").write_bytes(content[:length])
    with pytest.raises(ValueError, match=r"short\.pt is (truncated|damaged)"):
        load(tmp_path / "short.pt")


def flip_a_weight(source, target) -> None:
    """Flip the lowest bit in the middle of the largest tensor."""
    content = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as archive:
        entry = max(archive.infolist(), key=lambda e: e.file_size)
        content[content.index(archive.read(entry)) + entry.file_size // 2] ^= 1
    target.write_bytes(content)


def test_a_flipped_bit_is_refused(language_model, tmp_path):
    flip_a_weight(language_model, tmp_path / "flipped.pt")
    with pytest.raises(ValueError, match=r"flipped\.pt is damaged \(.*data/.*\): copy it again"):
        load(tmp_path / "flipped.pt")


def test_stock_loads_the_flipped_bit(language_model, tmp_path, stock):
    stock(checkpoint_utils, "load_checkpoint_to_cpu")
    flip_a_weight(language_model, tmp_path / "flipped.pt")
    load(tmp_path / "flipped.pt")


def test_a_compressed_archive_is_refused(language_model, tmp_path):
    with (
        zipfile.ZipFile(language_model) as source,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.namelist():
            target.writestr(entry, source.read(entry))
    with pytest.raises(ValueError, match=r"bomb\.pt is compressed"):
        load(tmp_path / "bomb.pt")


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), b"\x80\x02}."])
def test_files_that_are_not_checkpoints_are_refused(content, tmp_path):
    (tmp_path / "other.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.pt is"):
        load(tmp_path / "other.pt")


def test_a_file_that_holds_a_single_tensor_is_refused(tmp_path):
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(ValueError, match=r"tensor\.pt is not a checkpoint of fairseq"):
        load(tmp_path / "tensor.pt")


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_training_refuses_a_hostile_checkpoint_too(option, data, translator, sentinel, tmp_path):
    state = torch.load(translator)
    state["extra_state"]["x"] = Call(os.system, f"touch {sentinel}")
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=r"hostile\.pt is refused: it names"):
        run_training(
            data, tmp_path / "new", *translation_options(), option, tmp_path / "hostile.pt"
        )
