"""Provide `highrank doctor`: versions, devices, missing packages; it tries kernels and a disk."""

import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from packaging.requirements import Requirement

import highrank_plugins
from highrank_plugins.common.blocks import option
from highrank_plugins.common.files import flush, link_whole
from highrank_plugins.common.folders import locked
from highrank_plugins.common.processes import memory_gib, python, usable_cores
from highrank_plugins.common.user_error import UserError

PROJECT = "highrank_plugins"
SETUP = "run: bash scripts/setup.sh"
# what --kernels tries: functions that kernels know, and the number of classes
FUNCTIONS = ("identity", "sigsoftmax", "gss", "softcap", "sigmoid_cap", "multimax", "plif")
CLASSES = 5008
_IMPORT_NAMES = {"pyyaml": "yaml", "tensorboardx": "tensorboardX", "ve-fairseq": "fairseq"}
# prints the name of each module before it is imported, so that the last one is the broken one
_IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    print(name, flush=True)
    importlib.import_module(name)
"""
_REGISTERS = "sys.modules[name].register()"


def doctor(
    folder: Annotated[
        Path | None, typer.Argument(help="With --faults: a folder on the disk (default: .).")
    ] = None,
    faults: bool = option(False, "Try what saves need from the disk of FOLDER."),
    numbers: bool = option(False, "Repeat training runs, and compare their numbers."),
    kernels: bool = option(False, "Compare the compiled loss kernels with torch's."),
    output: Path | None = option(None, "With --numbers: JSON file to add this machine's to."),
) -> None:
    """Show versions, devices and missing packages.

    Example: highrank doctor --faults .

    The exit code is 1 if something required is missing, a fault is not survived, a number differs
    or a kernel is wrong.

    With --faults: start two runs in one folder, rename over a file that is being read, flush
    and link. Says whether a training run survives each fault on this disk, and what to do. Leaves
    nothing in FOLDER. See docs/reliability.md.

    With --numbers: train five tiny models for ten updates, and compare losses and tensors with
    those that we have committed for this kind of machine, if any. Takes less than a minute.

    With --kernels: try the kernels that losses use on the processor and on the first GPU. Prints
    the error of each and what is allowed, relative to the numbers. Takes a minute, on a GPU
    several.
    """
    for given, mode, used in ((output, "--numbers", numbers), (folder, "--faults", faults)):
        if given is not None and not used:
            raise ValueError(f"{given} has no effect without {mode}; add {mode}")
    from highrank_plugins.cli.numbers import compare_numbers

    tries = [
        (numbers, lambda: compare_numbers(output)), (kernels, try_kernels),
        (faults, lambda: try_faults(folder or Path())),
    ]  # fmt: skip
    found = [each() for wanted, each in tries if wanted] or [diagnose()]
    typer.echo("\n".join(line for lines, _ in found for line in lines))
    raise typer.Exit(0 if all(is_well for _, is_well in found) else 1)


def try_kernels() -> tuple[list[str], bool]:
    """Return a line for each kernel that is tried here, and whether all are right."""
    import torch

    from highrank_plugins.heads import build_head
    from highrank_plugins.losses import targets, trust
    from highrank_plugins.losses.kernels.cpp.build import Unavailable, library

    tree: dict[str, Any] = {"components": 4, "frequent_classes": range(CLASSES // 2)}
    layers = [("softmax", {}), ("mos", {"components": 4}), ("mixtape", tree)]
    cases = [(layer, {**o, "pointwise": f}) for layer, o in layers for f in FUNCTIONS]
    cases += [("mos", {"components": 15}), ("mixtape", {**tree, "components": 8})]
    kinds, lines = [("cpp", "cpu", torch.float32)], []
    if isinstance(compiled := library(), Unavailable):  # on a GPU, triton's are tried all the same
        kinds, lines = [], [f"not tried  'cpp': {compiled}"]
    if torch.cuda.is_available():
        dtypes = (torch.bfloat16, torch.float16, torch.float32)
        kinds += [("triton", "cuda", dtype) for dtype in dtypes]
    trust.verdicts.clear()
    targets_of = ("classes", "smoothed", "weights")
    for (impl, device, dtype), (layer, options), kind in product(kinds, cases, targets_of):
        head = build_head(layer, num_classes=CLASSES, feature_dim=8, **options).to(device, dtype)
        features = torch.ones(2, 8, device=device, dtype=dtype, requires_grad=True)
        classes = torch.tensor([0, 1], device=device)
        target = targets.labels(classes) if kind == "weights" else classes
        smoothing = 0.1 if kind == "smoothed" else 0.0
        with suppress(trust.Untrusted):
            head.nll(features, target, impl=impl, reduction="sum", label_smoothing=smoothing)
    for (_, name), (found, error, allowed) in trust.verdicts.items():
        verdict, wrong = ("right", []) if found == trust.RIGHT else ("WRONG", [f"       {found}"])
        lines += [f"{verdict}  {error:.1e} of {allowed:.1e}  {name}", *wrong]
    tried = trust.verdicts.values()
    return lines, bool(tried) and all(found == trust.RIGHT for found, *_ in tried)


def diagnose() -> tuple[list[str], bool]:
    """Return lines about this machine, its packages and what is wrong, and whether all is well."""
    packages, free = check_packages(), shutil.disk_usage(Path.cwd()).free
    problems = [f"{package.name}: {package.problem}" for package in packages if package.problem]
    rows = [
        ("python", f"{platform.python_version()}  {sys.executable}"),
        ("platform", platform.platform()),
        ("cores, memory", f"{usable_cores()}, {memory_gib()} GiB"),
        ("free disk", f"{free / 2**30:.1f} GiB here"),
        *([] if problems else _devices()),
        *((package.name, package.version or "-") for package in packages),
    ]
    lines = [f"{name:<18}{value}" for name, value in rows]
    lines += [f"note     {package.name}: {package.note}" for package in packages if package.note]
    wrong = [f"PROBLEM  {problem}" for problem in problems] or ["Nothing required is missing."]
    return [*lines, *wrong], not problems


def _devices() -> list[tuple[str, str]]:
    """Return CUDA devices, and the file of the CPU's kernels or the reason why it is missing."""
    import torch

    from highrank_plugins.losses.kernels.cpp.build import Unavailable, library

    kernels, cuda = library(), torch.cuda
    names = list(map(cuda.get_device_name, range(cuda.device_count())))
    devices = f"{len(names)} (CUDA {torch.version.cuda}): {', '.join(names)}"
    return [
        ("CUDA devices", devices if names else "none: everything runs on the CPU"),
        ("triton", "yes" if find_spec("triton") else "no (only for GPU kernels)"),
        ("CPU kernels", str(kernels) if isinstance(kernels, Unavailable) else kernels._name),
    ]


class Package(NamedTuple):
    """Describe an installed requirement: a `problem` must be repaired, a `note` need not."""

    name: str
    version: str | None
    problem: str | None = None
    note: str | None = None


def check_packages() -> list[Package]:
    """Return the state of every requirement, and of this project if they are there.

    Imports happen in another process: a broken package may raise anything, or crash.
    """
    has_fairseq = sys.version_info < (3, 13)
    packages = [
        find(needed)
        for needed in map(Requirement, metadata.requires(PROJECT) or [])
        if needed.marker is None or needed.marker.evaluate({"extra": ""})
    ]
    if any(package.problem for package in packages):
        return packages
    wanted = [package.name.lower() for package in packages]
    names = [_IMPORT_NAMES.get(name, name.replace("-", "_")) for name in wanted]
    words = python("-c", _IMPORTS + _REGISTERS * has_fairseq, *names, PROJECT)
    tried = subprocess.run(words, capture_output=True, text=True)
    reason = (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
    last = (tried.stdout.split() or [""])[-1]
    failed = f"cannot import {last} ({reason}); {SETUP}" if tried.returncode else None
    alone = None if has_fairseq else "fairseq has no build for this Python; the layers work alone"
    return [*packages, Package(PROJECT, highrank_plugins.__version__, failed, alone)]


def find(requirement: Requirement) -> Package:
    """Return the state of a requirement: missing, a wrong version, or fine."""
    name = requirement.name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, None, f"missing; {SETUP}")
    if not requirement.specifier.contains(version, prereleases=True):
        return Package(name, version, f"{version} is outside {requirement.specifier}; {SETUP}")
    return Package(name, version)


# what --faults tries
_RENAMES, _BYTES = 300, 100_000
_ELSEWHERE = "Save to another file system: checkpoints may be lost on this one"


class Finding(NamedTuple):
    """Say whether a training run survives a fault on a disk, and what to do."""

    survived: bool
    details: str
    advice: str = ""


def try_faults(folder: Path) -> tuple[list[str], bool]:
    """Return a line for each fault on the disk of a folder, and whether runs survive them all."""
    lines, survived = [], True
    for name, fault in FAULTS.items():
        with TemporaryDirectory(prefix=".highrank-faults-", dir=folder.resolve()) as inner:
            try:
                found = fault(Path(inner))
            except OSError as error:
                found = Finding(False, str(error), _ELSEWHERE)
        verdict = "survived" if found.survived else "FAILED"
        lines.append(f"{verdict:<10}{name:<28}{'. '.join(filter(None, found[1:]))}")
        survived = survived and found.survived
    return lines, survived


def start_twice(folder: Path) -> Finding:
    """Lock a folder as a training run does, try again, and again after the holder is killed."""
    with locked(folder) as is_locked:
        two_can = _another_can_lock(folder)
    advice = "Start one training run at a time in a --save-dir here, or mount with locks"
    advice += " (Lustre: -o flock; NFS: without nolock)"
    if not is_locked:
        return Finding(False, "no process could lock the folder", advice)
    if two_can:
        return Finding(False, "a second process could lock the folder as well", advice)
    if not (_another_can_lock(folder) and _another_can_lock(folder)):
        return Finding(False, "the lock of a killed process remains", advice)
    advice = "This does not test two machines: start a training run on each; one must be refused"
    return Finding(True, "the second is refused; a killed one leaves no lock", advice)


def _another_can_lock(folder: Path) -> bool:
    """Whether another process can lock a folder; it is killed while it holds the lock."""
    process = get_context("fork").Process(target=_lock_and_die, args=(folder,))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def _lock_and_die(folder: Path) -> None:
    with suppress(UserError), locked(folder) as is_locked:
        if is_locked:
            os.kill(os.getpid(), signal.SIGKILL)


def replace_while_reading(folder: Path) -> Finding:
    """Rename files onto one name while it is read: it must always be a whole one."""
    target, part = folder / "name", folder / "name.tmp"
    target.write_bytes(bytes(_BYTES))

    def rename() -> None:
        for number in range(_RENAMES):
            part.write_bytes(bytes([number % 256]) * _BYTES)
            os.replace(part, target)

    seen = Counter[str]()
    with ThreadPoolExecutor(1) as pool:
        renames = pool.submit(rename)
        while not renames.done():
            try:
                content = target.read_bytes()
            except OSError as error:
                # network disks report this error for a file that was replaced while open
                seen["missing"] += error.errno != errno.ESTALE
                continue
            is_whole = len(content) == _BYTES and content.count(content[:1]) == _BYTES
            seen["whole" if is_whole else "torn"] += 1
    renames.result()
    if seen["missing"] or seen["torn"]:
        found = f"{seen['missing']} times missing, {seen['torn']} times torn"
        return Finding(False, f"{found} in {seen.total()} reads", _ELSEWHERE)
    return Finding(True, f"{_RENAMES} renames, {seen['whole']} reads: always a whole file")


def flush_and_link(folder: Path) -> Finding:
    """Flush a file and the names in its folder, and give it a second name, as saves do."""
    first, second = folder / "first", folder / "second"
    began = time.monotonic()
    first.write_bytes(bytes(_BYTES))
    flush(first)
    flush(folder)
    flushed = f"a flush takes {1000 * (time.monotonic() - began):.0f} ms"
    link_whole(first, second)
    first.unlink()
    if second.read_bytes() != bytes(_BYTES):
        return Finding(False, "the file under its second name differs", _ELSEWHERE)
    try:
        os.link(second, folder / "third")
    except OSError:
        advice = "Each save copies the checkpoint: plan for three times the disk space"
        return Finding(True, f"{flushed}; hard links: no", advice)
    return Finding(True, f"{flushed}; hard links: yes")


FAULTS = {
    "two runs in one folder": start_twice,
    "rename over a file in use": replace_while_reading,
    "flushes and links": flush_and_link,
}
