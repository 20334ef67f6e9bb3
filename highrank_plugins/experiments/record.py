"""The JSON record of one run: what was run, where, and what came out."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import highrank_plugins
from highrank_plugins.experiments.configuration import Configuration
from highrank_plugins.experiments.resources import memory_gib, usable_cores
from highrank_plugins.experiments.scoring import Score
from highrank_plugins.experiments.training_log import Training

_PACKAGES = ("torch", "ve-fairseq", "numpy", "sacrebleu", "sentencepiece")


def make_record(
    scores: dict[str, Score],
    configuration: Configuration,
    training: Training,
    finetuning: Training | None = None,
    *,
    paired: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that is needed to judge and to repeat a result, as plain values.

    Args:
        scores: the signature of the first, which is the one to report, becomes `signature`.
        finetuning: a second training, which went on from the first.
        paired: the test against another system, see `scoring.compare`.
    """
    more: dict[str, Any] = {}
    if finetuning is not None:
        more["finetune"] = {"command": finetuning.command, "train": finetuning.summary}
    if paired is not None:
        more["paired"] = paired
    return {
        "metrics": {name: score.value for name, score in scores.items()},
        "signature": next(iter(scores.values())).signature,
        "signatures": {name: score.signature for name, score in scores.items()},
        "config": configuration.blocks(),
        "seeds": [configuration.train.get("seed", 1)],  # 1 is fairseq's default
        "command": training.command,
        "train": training.summary,
        **more,
        "versions": versions(),
        "git": git_state(),
        "hardware": hardware(),
    }


def versions() -> dict[str, str]:
    """Of Python, of this package, and of what computes the numbers."""
    return {
        "python": platform.python_version(),
        "highrank_plugins": highrank_plugins.__version__,
        **{name: version(name) for name in _PACKAGES},
    }


def git_state() -> dict[str, Any] | None:
    """Revision of the clone and whether files of it differ; None outside of a clone."""
    root = Path(highrank_plugins.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    revision = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    # a result is not another one because of files that git does not know
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"revision": revision or None, "modified": bool(changes)}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def hardware() -> dict[str, Any]:
    """Processor, the cores this process may use, memory, GPUs by name."""
    import torch

    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_gib": memory_gib(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def write_json(path: Path, value: object) -> None:
    """Write all or nothing: beside the target first, then renamed."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write all or nothing: beside the target first, then renamed; into a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
