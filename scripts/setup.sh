#!/usr/bin/env bash
# Makes .venv in the repository's root with the pinned set of packages and this project in it.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash scripts/setup.sh [--help]

Makes .venv next to setup.py: the packages of requirements/pinned.txt and this project (-e).
Does nothing when nothing has changed since, and repairs a .venv that an interruption left behind.

environment:
  PYTHON   interpreter to use, 3.11 or 3.12 (default: .venv's, else the first found on PATH)

pip's own configuration is honoured. On a machine without GPU the CPU build of torch saves
several GB:  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu bash scripts/setup.sh
TEXT
}

case "${1-}" in
    "") ;;
    -h | --help) usage && exit 0 ;;
    *) echo "setup: unknown option '$1'; the only one is --help" >&2 && exit 2 ;;
esac

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"
python="$venv/bin/python"
pins="$root/requirements/pinned.txt"
marker="$venv/.installing"          # there while .venv is not whole
stamp="$venv/.stamp"                # what .venv was made from, written last
cd -- "$root"

say() { echo "setup: $*" >&2; }
minor_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
supported() { [[ "$(minor_version "$1")" =~ ^3\.(11|12)$ ]]; }

find_python() {
    local candidate
    if [[ -n "${PYTHON-}" ]]; then
        supported "$PYTHON" && echo "$PYTHON" && return
        say "PYTHON=$PYTHON is $(minor_version "$PYTHON" || echo no Python that runs)," \
            "but this project needs Python 3.11 or 3.12 (fairseq has wheels for no other);" \
            "set PYTHON to one of these"
        return 1
    fi
    for candidate in "$python" python3.11 python3.12 python3 python; do
        supported "$candidate" && echo "$candidate" && return
    done
    say "found no Python 3.11 or 3.12 on PATH (fairseq has wheels for no other);" \
        "install one, or name it: PYTHON=/path/to/python3.11 bash scripts/setup.sh"
    return 1
}

# A moved clone leaves scripts in .venv that point to the old place: `activate` names it.
is_whole() { [[ ! -e "$marker" ]] && supported "$python" && grep -qsF "$venv" "$venv/bin/activate"; }

# What the inputs are, and which of the pinned packages are there: both must be as they were.
fingerprint() {
    "$python" -I - "$pins" setup.py pyproject.toml scripts/setup.sh <<'CODE'
import hashlib, importlib.metadata, pathlib, sys

print(sys.version, hashlib.sha256(b"\0".join(pathlib.Path(p).read_bytes() for p in sys.argv[1:])).hexdigest())
lines = pathlib.Path(sys.argv[1]).read_text().split()
for name in [line.split("==")[0] for line in lines if "==" in line] + ["highrank_plugins"]:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        print(name, "missing")
CODE
}

pip_install() { "$python" -m pip install --disable-pip-version-check "$@"; }

install() {
    local torch
    torch="$(grep '^torch==' "$pins")"
    say "installing $torch (the largest part)"
    pip_install --no-compile --constraint "$pins" setuptools "$torch"   # shows the progress
    say "installing all $(grep -c '==' "$pins") pinned packages"
    pip_install --quiet --no-compile --no-deps --no-build-isolation --requirement "$pins"
    say "installing this project (-e)"   # setuptools warns at length of what -e means
    PYTHONWARNINGS=ignore pip_install --quiet --no-deps --no-build-isolation --editable .
    say "compiling all of it to bytecode"    # by all cores; pip uses one
    # without the packages' own tests and warnings; a file in Python 2, say, only fails when imported
    "$python" -W ignore::SyntaxWarning -m compileall -qq -j 0 -x 'site-packages/.*/tests?/' \
        "$venv/lib" highrank_plugins || true
}

check() {
    say "checking that everything can be imported"
    "$venv/bin/highrank" doctor >"$venv/doctor.txt" || { cat -- "$venv/doctor.txt" >&2; return 1; }
}

base="$(find_python)"
if [[ -e "$venv" ]] && ! is_whole; then
    say "removing $venv: an interruption or a move left it incomplete"
    rm -rf -- "$venv"
elif [[ -e "$venv" && "$(minor_version "$base")" != "$(minor_version "$python")" ]]; then
    say "removing $venv: it is of Python $(minor_version "$python")"
    rm -rf -- "$venv"
elif [[ -e "$stamp" && "$(fingerprint)" == "$(cat "$stamp")" ]]; then
    say "$venv is up to date"
    exit 0
fi

if [[ ! -e "$venv" ]]; then
    base="$(find_python)"           # the one found above may have been in the removed .venv
    say "making $venv with Python $(minor_version "$base")"
    mkdir -- "$venv"
    touch -- "$marker"
    "$base" -m venv -- "$venv"
fi
touch -- "$marker"
install
rm -- "$marker"
check
fingerprint >"$stamp"
say "done: .venv/bin/highrank --help"
