"""Repeat five tiny training runs, and compare each update with committed numbers.

`numbers.json` has the numbers of some kinds of machine: a digest and the norm of the loss and of
each tensor, after each of ten updates. A kind is a processor family, the instructions that torch
uses there, and the version of torch.
"""

import hashlib
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import highrank_plugins
from highrank_plugins.common.files import read_json, write_json
from highrank_plugins.common.formatting import bar
from highrank_plugins.common.provenance import hardware, versions

REFERENCE = Path(__file__).with_name("numbers.json")
UPDATES = 10
_CPP, _LOSS = "--head-loss cpp", "loss"
_OPTIONS = f"""--num-workers 0 --no-progress-bar --log-interval 1 --seed 3 --disable-validation
    --max-update {UPDATES} --save-interval-updates 1 --no-epoch-checkpoints --cpu"""
_ADAM = "--optimizer adam --lr 0.005 --dropout 0.1 --criterion highrank_cross_entropy"
_PAIRS = f"""--source-lang source --target-lang target --batch-size 8 --label-smoothing 0.1
    --encoder-embed-dim 32 --decoder-embed-dim 32 {_ADAM}"""
_SENTENCES = f"""--task language_modeling --tokens-per-sample 24 --batch-size 4
    --decoder-embed-dim 32 --decoder-input-dim 32 --decoder-output-dim 32
    --decoder-ffn-embed-dim 64 --decoder-layers 1 --decoder-attention-heads 2 {_ADAM}"""
# architecture and implementation of the loss → further options
TRAININGS = {
    "lstm_softmax --head-loss reference": f"""{_PAIRS} --encoder-hidden-size 24
        --decoder-hidden-size 24 --decoder-out-embed-dim 32""",
    "transformer_mixtape_tiny --head-loss fused": f"""{_PAIRS} --encoder-layers 1
        --decoder-layers 1 --encoder-ffn-embed-dim 64 --decoder-ffn-embed-dim 64""",
    "awd_lstm_lm_mos --head-loss fused": """--task bptt_language_modeling --bptt 8 --batch-size 4
        --optimizer nt_asgd --lr 2 --clip-norm 0.25 --criterion bptt_cross_entropy --ar-alpha 2
        --tar-beta 1 --dropout 0.2 --wdrop 0.2 --decoder-embed-dim 32 --decoder-hidden-size 24
        --decoder-last-hidden-size 32 --decoder-layers 2""",
    "transformer_lm_plif --head-loss chunked": f"{_SENTENCES} --head-plif-knots 500",
    f"transformer_lm_sigsoftmax {_CPP}": _SENTENCES,
}
Run = dict[str, str]  # name of a tensor → `DIGEST:NORM` after each update, with blanks between


def compare_numbers(output: Path | None) -> tuple[list[str], bool]:
    """Return lines that compare this installation with ours, and whether no number differs.

    With `output`, this machine's numbers are added to that file instead, without those of another
    `NUMERICS_VERSION`.
    """
    from highrank_plugins.studies.members import NUMERICS_VERSION

    kind, path = this_kind(), output or REFERENCE
    new: dict[str, Any] = {"numerics": NUMERICS_VERSION, "kinds": {}}
    known = read_json(path) if path.exists() else new
    if not (isinstance(known, dict) and known.keys() == new.keys()):
        raise ValueError(f"{path}: not written by `highrank doctor --numbers`; name another file")
    if known["numerics"] != NUMERICS_VERSION:
        known = new
    if output is not None:
        known["kinds"][kind] = repeat()
        write_json(output, known)
        return [f"{output}: has the numbers of {kind}"], True
    if kind in known["kinds"]:
        return compared(repeat(), known["kinds"][kind], kind)
    return [
        f"no reference: we have not computed on {kind}, only on {'; '.join(known['kinds'])}",
        "To send the numbers of this machine, write them: highrank doctor --numbers --output FILE",
    ], True


def this_kind() -> str:
    """Return what makes equal programs give equal numbers: processor, instructions, torch."""
    import torch

    found = hardware()
    names = [found["processor"].split()[0]]
    names += [f"{name} {found[name]}" for name in ("family", "model") if name in found]
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{' '.join(names)}, {capability}, torch {versions()['torch']}"


def compared(found: dict[str, Run], expected: dict[str, Run], kind: str) -> tuple[list[str], bool]:
    """Return lines that say where results of `repeat` differ first, and whether none does."""
    verdicts = dict.fromkeys(found, "no reference")
    for title in found.keys() & expected.keys():
        difference = first_difference(found[title], expected[title])
        verdicts[title] = f"DIFFERS at {difference}" if difference else "equal"
    said = [*verdicts.values()]
    counted = f"{said.count('equal')} of {len(said)} training runs are equal bit for bit, on {kind}"
    lines = [f"{title}: {verdict}" for title, verdict in verdicts.items()]
    if "DIFFERS" not in "".join(said):
        return [*lines, f"This installation computes what ours did: {counted}"], True
    lines.append(f"This installation computes other numbers than ours did: {counted}")
    return [*lines, "docs/reliability.md, Numbers that watch the world, has causes"], False


def first_difference(found: Run, expected: Run) -> str:
    """Return the first update, tensor and digit in which two runs differ; empty if they equal."""
    if found.keys() != expected.keys():
        return f"names of tensors: {', '.join(sorted(found.keys() ^ expected.keys()))}"
    for update in range(UPDATES):
        for name in found:
            here, ours = (run[name].split()[update] for run in (found, expected))
            if here != ours:
                place = f"update {update + 1}, {'' if name == _LOSS else 'norm of '}{name}"
                one, other = (float(text.partition(":")[2]) for text in (here, ours))
                return f"{place}, digit {first_digit(one, other)}: {one!r} here, {other!r} in ours"
    return ""


def first_digit(value: float, expected: float) -> int:
    """Return the first significant digit of a number, counted from 1, that differs.

    Equal numbers differ behind all digits of a float64: in the 18th.
    """
    gap = abs(value - expected)
    if not (math.isfinite(gap) and expected):
        return 1
    # the factor: 1.3 − 1.2 is a little less than 0.1
    place = math.floor(math.log10(gap * (1 + 1e-9))) if gap else -math.inf
    return max(1, int(min(18, math.floor(math.log10(abs(expected))) - place + 1)))


def repeat() -> dict[str, Run]:
    """Return the numbers of the training runs on this machine, on one thread.

    The run of compiled kernels carries the compiler's name, and is left out without a compiler.
    """
    from highrank_plugins.losses.kernels.cpp.build import compiler_version

    for module in ("fairseq_cli.train", "fairseq_cli.preprocess", "torch._dynamo"):
        import_module(module)  # once for all forks
    compiler, found = compiler_version(), {}
    user_dir = Path(highrank_plugins.__file__).parent
    with TemporaryDirectory(prefix="highrank-numbers-") as name:
        folder = Path(name)
        _write_data(folder)
        for title in bar([one for one in TRAININGS if compiler or _CPP not in one], "training"):
            options, save_dir = TRAININGS[title], folder / title.split()[0]
            words = f"{folder / 'pairs'} --save-dir {save_dir} --arch {title} {options}"
            _run(folder, "train", f"{words} {_OPTIONS} --user-dir {user_dir}")
            found[f"{title}, {compiler}" if _CPP in title else title] = _numbers(save_dir)
    return found


def _write_data(folder: Path) -> None:
    """Binarise 120 lines of invented words, and each line reversed as its translation."""
    numbers = [[(i * i + j * (i + 3)) % 53 for j in range(4 + i % 9)] for i in range(120)]
    for side, step in (("source", 1), ("target", -1)):
        lines = [" ".join(f"{side}{number}" for number in line[::step]) for line in numbers]
        (folder / f"train.{side}").write_text("\n".join(lines) + "\n")
    for texts in ("train --source-lang source --target-lang target", "train.source --only-source"):
        _run(folder, "preprocess", f"--trainpref {folder}/{texts} --destdir {folder}/pairs")


def _run(folder: Path, name: str, words: str) -> None:
    """Run a command of fairseq in a fork; a ValueError has its last line."""
    log = folder / "log"
    child = multiprocessing.get_context("fork").Process(target=_call, args=(log, name, words))
    child.start()
    child.join()
    if child.exitcode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ValueError(
            f"fairseq-{name} failed with exit code {child.exitcode}: {''.join(last)}; `highrank "
            "doctor` says what is missing"
        )


def _call(log: Path, name: str, words: str) -> None:
    import torch

    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch.set_num_threads(1)
    sys.argv = [f"fairseq-{name}", *words.split()]
    import_module(f"fairseq_cli.{name}").cli_main()


def _numbers(save_dir: Path) -> Run:
    """Return the digests in the checkpoints of a run."""
    found: dict[str, list[str]] = {}
    for update in range(1, UPDATES + 1):
        (path,) = save_dir.glob(f"checkpoint_*_{update}.pt")
        for name, tensors in _tensors(path):
            hashed = hashlib.sha256(b"".join(one.numpy().tobytes() for one in tensors))
            squares = (x * x for one in tensors for x in one.double().flatten().tolist())
            digest = f"{hashed.hexdigest()[:8]}:{math.sqrt(math.fsum(squares))!r}"
            found.setdefault(name, []).append(digest)
    return {name: " ".join(digests) for name, digests in found.items()}


def _tensors(checkpoint: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield the loss of the last update, the parameters, and what the optimizer keeps."""
    import torch

    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    meters = {name: meter for _, name, _, meter in state["extra_state"]["metrics"]["train"]}
    yield _LOSS, [torch.as_tensor(meters["loss"]["val"])]
    yield from ((name, [tensor]) for name, tensor in state["model"].items())
    leaves = torch.utils._pytree.tree_leaves(state["last_optimizer_state"])
    yield "state of the optimizer", [one for one in leaves if torch.is_tensor(one)]
