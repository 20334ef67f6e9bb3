"""`highrank doctor`: versions, devices, and what is missing with what to do about it."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, devices and what is missing. Exit code 1 if something required is."""
    report = diagnose()
    typer.echo(json.dumps(report, indent=2) if as_json else render(report))
    raise typer.Exit(1 if report["problems"] else 0)


def diagnose() -> dict[str, Any]:
    """Everything that `highrank doctor` tells, as plain values.

    `problems` are what must be repaired, `notes` differences from the tested set.
    """
    from highrank_plugins.cli import machine, packages

    report = machine.describe_machine()
    found = packages.check_packages()
    problems = [f"{package.name}: {package.problem}" for package in found if package.problem]
    python_problem = packages.python_problem(str(report["python"]))
    if python_problem:
        problems.insert(0, python_problem)
    usable = {package.name for package in found if package.version and not package.problem}
    devices = machine.describe_devices() if "torch" in usable else {}
    return {
        **report,
        **devices,
        "packages": [asdict(package) for package in found],
        "problems": problems,
        "notes": [f"{package.name}: {package.note}" for package in found if package.note],
    }


def render(report: dict[str, Any]) -> str:
    """The report as text for a person."""
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
        [*lines, "" if report["problems"] else "everything required is there"]
    ).rstrip()


def _devices(report: dict[str, Any]) -> str:
    names = report.get("devices", [])
    if not names:
        return "none: everything runs on the CPU"
    return f"{len(names)} (CUDA {report['cuda']}): " + ", ".join(names)
