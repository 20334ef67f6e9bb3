"""Hold the tests of a study to its looks: a table with tests has spent all of alpha.

With seeds that neither a plan nor the first table had, any later test finds differences too often.
So the first whole table keeps the seeds of each system, by its configuration without the seed.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import read_json, write_json
from highrank_plugins.results.record import DIVERGED, RESULTS, UNFAIR
from highrank_plugins.studies.members import NOT_RUN, PreparedMember
from highrank_plugins.studies.plan import StudyPlan, most_seeds, seeds_of

LOOKS = "looks.json"  # digest of a system → its seeds and the settings of its first whole table
UNTESTED = "untested.json"  # system → why the last table has no test of it
LATE = "seeds were added, left out or changed, which was not planned before a look"
ELSEWHERE = "seeds may be added to their study, whose own table (`highrank study`) has tests"


def untested(
    members: Sequence[PreparedMember],
    problems: Mapping[str, str],
    folder: Path,
    plan: StudyPlan | None,
) -> dict[str, str]:
    """Return why systems have no test: seeds that wait or failed, looks, machines."""
    systems: dict[str, list[PreparedMember]] = {}
    for one in members:
        systems.setdefault(one.member.system, []).append(one)
    if why := _waiting(systems, problems, plan) or _mixed_machines(members):
        return dict.fromkeys(systems, why)
    then = {} if plan is None else seeds_of(plan.get("keys", ()))
    is_beyond = plan is not None and most_seeds(members) > plan["most"]
    before, now, found = _looks(folder), _groups(members), {}
    for system, own in systems.items():
        seeds = [str(one.member.seed) for one in own]
        planned = then.get(system, seeds)
        if plan is not None and plan["most"] == plan["seeds"]:  # the order tells no look
            planned, seeds = sorted(planned), sorted(seeds)
        kinds = [problems[one.name] for one in own if one.name in problems]
        groups, key = now.get(own[0].system_key), own[0].system_key
        if is_beyond or planned[: len(seeds)] != seeds or _seeds(before, key, groups) != groups:
            found[system] = LATE
        elif then and system not in then:
            found[system] = "the plan does not have it"
        elif kinds:
            found[system] = UNFAIR if DIVERGED in kinds else "a seed has no result"
    return found


def keep_look(
    members: Sequence[PreparedMember],
    problems: Mapping[str, str],
    folder: Path,
    plan: StudyPlan | None,
    reasons: Mapping[str, str],
    settings: Mapping[str, Any],
) -> None:
    """Keep what a table has no test of and, of a whole one without a plan, seeds and settings."""
    seen = dict.fromkeys((one.member.system for one in members), ELSEWHERE)
    several = plan is not None and plan["most"] > plan["seeds"]
    write_json(folder / UNTESTED, dict(reasons) if not several else seen | dict(reasons))
    if plan is not None or NOT_RUN in problems.values():
        return
    found = {key: {**settings, "seeds": seeds} for key, seeds in _groups(members).items()}
    write_json(folder / LOOKS, found | _looks(folder))


def _seeds(before: Mapping[str, Any], key: str, default: Any) -> Any:
    return before[key]["seeds"] if key in before else default


def changed_settings(
    members: Sequence[PreparedMember], folder: Path, settings: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a note on settings that are not those of the first whole table of a configuration.

    Of a mapping, which may have had fewer keys, the keys of both count.
    """
    before, changed = _looks(folder), dict[str, str]()
    for one in members:
        for name, now in settings.items():
            then = before.get(one.system_key, {}).get(name, now)
            if isinstance(now, Mapping):
                then = {key: then.get(key, value) for key, value in now.items()}
            if then != now:
                changed.setdefault(name, f"{name} (was {then})")
    if changed:
        said = ", ".join(changed.values())
        yield f"Changed since the first table, so a test here is a further one: {said}."


def _groups(members: Sequence[PreparedMember]) -> dict[str, list[list[str]]]:
    """Return the seeds of the systems of each configuration, sorted; of those with several."""
    systems: dict[tuple[str, str], list[str]] = {}
    for one in members:
        systems.setdefault((one.system_key, one.member.system), []).append(str(one.member.seed))
    found: dict[str, list[list[str]]] = {}
    for (key, _), seeds in sorted(systems.items()):
        found.setdefault(key, []).append(sorted(seeds))
    return {key: sorted(groups) for key, groups in found.items() if sum(map(len, groups)) > 1}


def other_sizes(
    members: Sequence[PreparedMember], folder: Path, sizes: Sequence[str], arms: Mapping[str, str]
) -> set[str]:
    """Return the arms of a ladder of which the first whole table had some sizes, and not others.

    `arms` has the arm of each system. An arm whose configurations are all new is another ladder's.
    """
    known: dict[str, set[Any]] = {}
    before = _looks(folder)
    for one in members:
        then = before.get(one.system_key, {}).get("sizes")
        known.setdefault(arms[one.member.system], set()).add(then and tuple(then))
    return {arm for arm, found in known.items() if found not in ({None}, {tuple(sizes)})}


def held_by_study(records: Sequence[Path]) -> dict[str, str]:
    """Return why systems have no test outside of their study: it tests none, or has more seeds.

    `records` are SYSTEM-SEED/results.json; one that lies elsewhere tells nothing.
    """
    found: dict[str, str] = {}
    runs = [path.absolute().parent for path in records if path.name == RESULTS]
    own = [(run.parent, run.name.rpartition("-")[0]) for run in runs]
    studies = {one for one in own if (one[0] / UNTESTED).exists()}
    for folder, system in dict.fromkeys(own):
        if (folder, system) not in studies:
            continue
        if sum(other == system for _, other in studies) > 1:
            found[system] = "its runs are of several studies"
        links = [one for one in folder.glob(f"{system}-*") if one.is_symlink()]
        there = [one for one in links if one.name.rpartition("-")[0] == system]
        if own.count((folder, system)) < len(there):
            found[system] = f"their study has {len(there)} seeds of each"
        if (why := _mapping(folder / UNTESTED).get(system)) is not None:
            found[system] = str(why)
    return found


def _waiting(
    systems: Mapping[str, Sequence[PreparedMember]],
    problems: Mapping[str, str],
    plan: StudyPlan | None,
) -> str | None:
    """Return why a look is not whole; to diverge is a result."""
    if plan is None:
        return "not all seeds are done" if NOT_RUN in problems.values() else None
    then = seeds_of(plan.get("keys", ()))
    few = any(
        len(own) < min(len(then.get(system, ())), plan["seeds"]) for system, own in systems.items()
    )
    lost = any(problem != DIVERGED for problem in problems.values())
    if lost or few or max(map(len, systems.values())) < plan["seeds"]:
        return f"not all of the planned seeds ({plan['seeds']} of each system or more) are done"
    return None


def _mixed_machines(members: Sequence[PreparedMember]) -> str | None:
    kinds: dict[int, set[str]] = {}
    for member in members:
        kinds.setdefault(member.member.seed, set()).update({member.machine()} - {""})
    mixed = [str(seed) for seed, found in kinds.items() if len(found) > 1]
    return f"machines of several kinds ran seed {', '.join(mixed)}" if mixed else None


def _looks(folder: Path) -> dict[str, Any]:
    return _mapping(folder / LOOKS, dict) if (folder / LOOKS).exists() else {}


def _mapping(file: Path, kind: type = object) -> dict[str, Any]:
    found = read_json(file)
    if not (isinstance(found, dict) and all(isinstance(one, kind) for one in found.values())):
        raise ValueError(f"{file}: damaged; restore it, or choose another --exp-dir")
    return found
