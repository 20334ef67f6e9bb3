"""`--languages SOURCE,TARGET`."""


def language_pair(text: str) -> tuple[str, str]:
    """Source and target.

    Raises:
        ValueError: another form.
    """
    source, comma, target = text.partition(",")
    if not (source and comma and target) or "," in target:
        raise ValueError(f"--languages {text}: expected SOURCE,TARGET, for example en,de")
    return source, target
