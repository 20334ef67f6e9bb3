"""hooks/checkpoint_validation.py: nothing in a checkpoint is executed, damage is named."""

import argparse
import io
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


# configurations that stock fairseq passes to eval() while it builds the model
EVALUATED = {
    "adaptive_softmax_cutoff": {"_name": "transformer_lm"},
    "character_filters": {"_name": "transformer_lm", "character_embeddings": True},
    "decoder_layers": {"_name": "fconv_lm"},
    "decoder_attention": {"_name": "fconv_lm", "decoder_layers": "[(8, 3)]"},
}


@pytest.mark.parametrize("field", EVALUATED)
def test_expressions_in_the_configuration_are_refused(field, state, sentinel, tmp_path):
    expression = f"[open({str(sentinel)!r}, 'w').close()]"
    state["cfg"]["model"].update(EVALUATED[field] | {field: expression})
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match="not a plain literal"):
        load(tmp_path / "hostile.pt")


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


def repeat_one_number(state):
    name = next(name for name, t in state["model"].items() if t.dim() == 2)
    state["model"][name] = torch.zeros(1).expand(10**6, 10**6)


def make_sparse(state):
    for name, tensor in state["model"].items():
        if tensor.dim() == 2:
            state["model"][name] = tensor.to_sparse()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_embed_dim": 10**7}, r"decoder_embed_dim 10000000, but its weights are \d+ by"),
        ({"decoder_layers": 10**9}, r"decoder_layers 1000000000, but its weights are \d+ te"),
        ({"decoder_embed_path": "/dev/zero"}, "/dev/zero is a pipe or a device; a file is needed"),
        (make_sparse, r"hostile\.pt is refused: .*weight is a sparse tensor"),
        (repeat_one_number, r"hostile\.pt is refused: .* declares 4000000000000 by"),
    ],
)
def test_sizes_and_paths_are_checked(change, message, state, tmp_path):
    if isinstance(change, dict):
        state["cfg"]["model"].update(change)
    else:
        change(state)
    torch.save(state, tmp_path / "hostile.pt")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "hostile.pt")


def flipped(source: Path) -> bytes:
    """Flip the lowest bit in the middle of the largest tensor."""
    content = bytearray(source.read_bytes())
    with zipfile.ZipFile(source) as archive:
        entry = max(archive.infolist(), key=lambda e: e.file_size)
        content[content.index(archive.read(entry)) + entry.file_size // 2] ^= 1
    return bytes(content)


def compressed(source: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            new.writestr(entry, old.read(entry))
    return packed.getvalue()


def single_tensor(_source: Path) -> bytes:
    packed = io.BytesIO()
    torch.save(torch.zeros(3), packed)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (flipped, r"damaged \(.*data/.*\): copy it again"),
        (compressed, "compressed"),
        (single_tensor, "not a checkpoint of fairseq"),
        (lambda _: b"PK\x05\x06" + bytes(18), ""),
        (lambda _: b"\x80\x02}.", ""),
        *((lambda source, part=part: source.read_bytes()[: int(part(source.stat().st_size))],
           "(truncated|damaged)")
          for part in (lambda n: 0, lambda n: 1, lambda n: 100, lambda n: n / 2, lambda n: n - 1)),
    ],
)  # fmt: skip
def test_files_that_are_not_whole_checkpoints_are_refused(
    content, message, language_model, tmp_path
):
    (tmp_path / "other.pt").write_bytes(content(language_model))
    with pytest.raises(ValueError, match=rf"other\.pt is {message}"):
        load(tmp_path / "other.pt")


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_training_refuses_a_hostile_checkpoint_too(option, data, translator, sentinel, tmp_path):
    state = torch.load(translator)
    state["extra_state"]["x"] = Call(os.system, f"touch {sentinel}")
    torch.save(state, tmp_path / "hostile.pt")
    words = [*translation_options(), option, tmp_path / "hostile.pt"]
    with pytest.raises(ValueError, match=r"hostile\.pt is refused: it names"):
        run_training(data, tmp_path / "new", *words)
