"""Write files completely or not at all."""

import json
import os
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Write all or nothing: beside the target first, then renamed."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write all or nothing: beside the target first, then renamed; into a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
