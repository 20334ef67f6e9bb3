"""Provide `highrank doctor`: versions, devices, missing packages and remedies."""

import json
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement
from packaging.version import Version

import highrank_plugins
from highrank_plugins.cli.user_error import user_errors
from highrank_plugins.common.processes import memory_gib, python, usable_cores


def doctor(
    folder: Annotated[
        Path | None, typer.Argument(help="With --faults: a folder on the disk to try (default: .).")
    ] = None,
    faults: Annotated[
        bool, typer.Option("--faults", help="Try what saves need from the disk of FOLDER.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, devices and missing packages.

    Example: highrank doctor --faults .

    The exit code is 1 if something required is missing.

    With --faults: start two runs in one folder, rename over a file that is being read, flush
    and link. Prints a line for each fault: whether a training run survives it on this disk, and
    what to do. Leaves nothing in FOLDER. The exit code is 1 if a fault was not survived. See
    docs/reliability.md.
    """
    if faults:
        raise typer.Exit(_try_faults(folder or Path(), as_json))
    with user_errors():
        if folder is not None:
            raise ValueError(f"{folder}: a folder has no effect without --faults; add --faults")
    report = diagnose()
    typer.echo(json.dumps(report, indent=2) if as_json else render(report))
    raise typer.Exit(1 if report["problems"] else 0)


def _try_faults(folder: Path, as_json: bool) -> int:
    """Print how each fault ended, and return the exit code."""
    from highrank_plugins.cli.disk_faults import try_faults

    # lets a scheduler's signal remove processes and files
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    findings = []
    with user_errors():
        for finding in try_faults(folder):
            findings.append(finding)
            if not as_json:
                typer.echo(finding.line())
    if as_json:
        typer.echo(json.dumps({"faults": [asdict(finding) for finding in findings]}, indent=2))
    return 0 if all(finding.survived for finding in findings) else 1


def diagnose() -> dict[str, Any]:
    """Return the findings of `highrank doctor` as plain values.

    `problems` must be repaired; `notes` are differences from the tested set.
    """
    report = describe_machine()
    found = check_packages()
    problems = [f"{package.name}: {package.problem}" for package in found if package.problem]
    unsupported = python_problem(str(report["python"]))
    if unsupported:
        problems.insert(0, unsupported)
    usable = {package.name for package in found if package.version and not package.problem}
    devices = describe_devices() if "torch" in usable else {}
    return {
        **report,
        **devices,
        "packages": [asdict(package) for package in found],
        "problems": problems,
        "notes": [f"{package.name}: {package.note}" for package in found if package.note],
    }


def render(report: dict[str, Any]) -> str:
    """Return the report as text for a person."""
    rows = [
        ("python", f"{report['python']}  {report['executable']}"),
        ("platform", report["platform"]),
        ("cores, memory", f"{report['cores']}, {report['memory_gib']} GiB"),
        ("free disk", f"{report['disk_free_gib']} GiB here"),
        ("CUDA devices", _devices(report)),
        ("triton", "yes" if report.get("triton") else "no (only for GPU kernels)"),
        ("CPU kernels", report.get("cpu_kernels", "unknown without torch")),
    ]
    rows += [(package["name"], package["version"] or "-") for package in report["packages"]]
    lines = [f"{name:<18}{value}" for name, value in rows]
    lines += [f"note     {note}" for note in report["notes"]]
    lines += [f"PROBLEM  {problem}" for problem in report["problems"]]
    return "\n".join(
        [*lines, "" if report["problems"] else "Nothing required is missing."]
    ).rstrip()


def _devices(report: dict[str, Any]) -> str:
    names = report.get("devices", [])
    if not names:
        return "none: everything runs on the CPU"
    return f"{len(names)} (CUDA {report['cuda']}): " + ", ".join(names)


GIB = 2**30


def describe_machine() -> dict[str, object]:
    """Return interpreter, operating system, usable cores, memory and disk in GiB."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": usable_cores(),
        "memory_gib": memory_gib(),
        "disk_free_gib": round(shutil.disk_usage(Path.cwd()).free / GIB, 1),
    }


def describe_devices() -> dict[str, object]:
    """Return CUDA devices by name, torch's CUDA version, and where kernels of losses can run.

    `cpu_kernels` is the file of their library, or the reason why it is missing.
    """
    import torch

    from highrank_plugins.losses.kernels.cpp.build import Unavailable, library

    count = torch.cuda.device_count()
    kernels = library()
    return {
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(count)],
        "triton": find_spec("triton") is not None,
        "cpu_kernels": str(kernels) if isinstance(kernels, Unavailable) else kernels._name,
    }


PROJECT = "highrank_plugins"
SETUP = "run: bash scripts/setup.sh"
_IMPORT_NAMES = {"pyyaml": "yaml", "tensorboardx": "tensorboardX", "ve-fairseq": "fairseq"}


@dataclass(frozen=True)
class Package:
    """Describe an installed requirement: a `problem` must be repaired, a `note` need not."""

    name: str
    version: str | None
    pinned: str | None
    problem: str | None = None
    note: str | None = None


def check_packages() -> list[Package]:
    """Return the state of every requirement, then of this project with fairseq, in ten seconds.

    Imports happen in processes of their own: a broken package may raise anything, or crash.
    """
    pins = pinned_versions()
    needed = [r for r in map(Requirement, metadata.requires(PROJECT) or []) if r.marker is None]
    packages = [find(requirement, pins.get(requirement.name.lower())) for requirement in needed]
    usable = [package for package in packages if package.problem is None]
    # try all packages in one process, and each alone only if that fails
    failure = import_failure([*map(import_name, usable), PROJECT], then=f"{PROJECT}.register()")
    if failure is not None:
        packages = [package if package.problem else try_import(package) for package in packages]
    if any(package.problem for package in packages):
        return packages
    problem = failure and f"cannot register with fairseq: {failure}"
    return [*packages, Package(PROJECT, highrank_plugins.__version__, None, problem)]


def find(requirement: Requirement, pinned: str | None) -> Package:
    """Return the state of a requirement: missing, a wrong version, or fine."""
    name = requirement.name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, None, pinned, problem=f"missing; {SETUP}")
    if not requirement.specifier.contains(version, prereleases=True):
        problem = f"{version} is outside {requirement.specifier}; {SETUP}"
        return Package(name, version, pinned, problem)
    # 2.13.0+cpu counts as the pinned 2.13.0
    differs = pinned is not None and Version(version).public != pinned
    note = f"{version} is installed, {pinned} was tested; {SETUP}" if differs else None
    return Package(name, version, pinned, note=note)


def try_import(package: Package) -> Package:
    """Return the package, with a problem if it cannot be imported."""
    failure = import_failure([import_name(package)])
    problem = failure and f"cannot be imported ({failure}); {SETUP}"
    return replace(package, problem=problem)


def import_name(package: Package) -> str:
    """Return the module name of a distribution."""
    name = package.name.lower()
    return _IMPORT_NAMES.get(name, name.replace("-", "_"))


def import_failure(modules: list[str], then: str = "") -> str | None:
    """Return the last line of the error if a new interpreter cannot import modules, run `then`."""
    code = f"import {', '.join(modules)}\n{then}"
    result = subprocess.run(python("-c", code), capture_output=True, text=True)
    if result.returncode == 0:
        return None
    lines = result.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {result.returncode}"


def python_problem(version: str) -> str | None:
    """Return what is wrong with a Python of this version, if anything."""
    supported = metadata.metadata(PROJECT)["Requires-Python"]
    if Requirement(f"python{supported}").specifier.contains(version, prereleases=True):
        return None
    return (
        f"Python {version} is not {supported}: create .venv with Python 3.11 or 3.12 "
        f"(PYTHON=…; {SETUP})"
    )


def pinned_versions() -> dict[str, str]:
    """Return the tested set, name → version; empty if the package is not used from a clone."""
    path = Path(highrank_plugins.__file__).parents[1] / "requirements" / "pinned.txt"
    return parse_pins(path.read_text().splitlines()) if path.is_file() else {}


def parse_pins(lines: Iterable[str]) -> dict[str, str]:
    """Parse `name==version` lines: lower-case name → version; everything else is skipped."""
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name.lower(): version.strip() for name, version in pairs}
