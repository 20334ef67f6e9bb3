"""With what a row was measured, so that it can be measured again."""

from functools import cache

from highrank_plugins.experiments.record import git_state


@cache
def revision() -> str:
    """Of the clone, with `+` where files of it differ; empty outside of a clone."""
    state = git_state() or {}
    return (state.get("revision") or "")[:9] + ("+" if state.get("modified") else "")
