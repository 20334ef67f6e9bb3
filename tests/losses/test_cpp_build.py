"""The library of `cpp`: made once, whole or not at all, and every obstacle is named."""

import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from highrank_plugins.losses import nll
from highrank_plugins.losses.kernels.cpp import build
from tests.heads.cases import SOFTMAX, make_features

TARGET = torch.arange(3)
LOAD = "from highrank_plugins.losses.kernels.cpp.build import library; print(library()._name)"


def executable(path, text):
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """Return a compiler that writes the library of the first one's run, which takes seconds."""
    folder = tmp_path_factory.mktemp("compiler")
    real, made = build._compilers()[0][0], folder / "library"
    return executable(folder / "c++", f"""
if [[ "${{@: -2:1}}" != -o ]]; then exec {real} "$@"; fi
if [[ -e {made} ]]; then exec cp {made} "${{@: -1}}"; fi
{real} "$@" && cp "${{@: -1}}" {made}
""")  # fmt: skip


@pytest.fixture
def quick_compiler(compiler, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    return compiler


@pytest.fixture
def compiled(quick_compiler):
    return build._compiled(build._compilers()[0], build.cache_folder())


def is_loaded():
    build.library.cache_clear()
    return not isinstance(build.library(), build.Unavailable)


@pytest.fixture(autouse=True)
def new_process(tmp_path, monkeypatch):
    monkeypatch.setenv("HIGHRANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nll, "_logged", set())
    build.library.cache_clear()
    yield
    build.library.cache_clear()


def refused() -> str:
    with pytest.raises(ValueError, match=r"^impl: 'cpp' has no kernels: ") as error:
        SOFTMAX.build().nll(make_features(3), TARGET, impl="cpp")
    assert str(error.value).endswith("or choose impl='fused' (--head-loss fused)")
    return str(error.value)


@pytest.mark.parametrize(("environment", "said"), [
    ({"CXX": "", "PATH": ""}, "found no C++ compiler (c++, g++, clang++); CXX names the compiler"),
    ({"CXX": "none-such"}, "none-such cannot be run: [Errno 2]"),
    ({"CXX": "g++ -DX='open"}, "No closing quotation; CXX names the compiler"),
    ({"CXX": "{}/broken"}, "broken failed with status 1: no disk"),
    ({"HIGHRANK_CACHE": f"{__file__}/cache"}, f"Not a directory: '{__file__}/cache'; CXX names"),
])  # fmt: skip
def test_an_obstacle_is_named(environment, said, monkeypatch, tmp_path):
    broken = '[ "$1" = --version ] || { printf "no disk\\351" >&2; exit 1; }'
    executable(tmp_path / "broken", broken)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert said in refused()
    assert "broken" not in said or list((tmp_path / "cache").iterdir()) == []


@pytest.mark.cpp
def test_other_compilers_words_of_cxx_and_relative_folders_work(compiler, monkeypatch, tmp_path):
    executable(tmp_path / "c++", "exit 1")
    executable(tmp_path / "g++", f'exec {compiler} "$@"')
    with monkeypatch.context() as patch:
        patch.delenv("CXX", raising=False)
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert is_loaded()
    monkeypatch.setenv("CXX", f"{compiler} -g0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HIGHRANK_CACHE", ".")
    assert is_loaded()


def test_a_user_without_a_home_gets_the_reason(monkeypatch):
    monkeypatch.delenv("HIGHRANK_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    no_home = mock.Mock(side_effect=RuntimeError("Could not determine home directory."))
    monkeypatch.setattr(build.Path, "expanduser", no_home)
    assert "Could not determine home directory" in refused()


@pytest.mark.cpp
@pytest.mark.parametrize(("what", "mode", "home", "is_trusted"), [
    *((what, mode, ".", False) for what in ("file", "folder", "parent") for mode in (0o777, 0o775)),
    ("parent", 0o1777, ".", True),  # as in /tmp, nobody can replace what is ours
    ("parent", 0o777, "shared/home", True),  # whoever can replace a home needs no kernels
    ("parent", 0o755, ".", True),
])  # fmt: skip
@pytest.mark.parametrize("linked", [False, True])
def test_what_others_could_have_written_or_replaced_is_not_loaded(
    what, mode, home, is_trusted, linked, quick_compiler, monkeypatch, tmp_path
):
    monkeypatch.setattr(build, "_is_private", lambda group: False)
    monkeypatch.setenv("HOME", str(tmp_path / "shared" / "home"))  # anybody can set it
    monkeypatch.setattr(build, "_home", lambda: tmp_path / home)
    cache = tmp_path / "shared" / "home" / "cache"
    cache.mkdir(parents=True)
    (tmp_path / "link").symlink_to(cache)
    monkeypatch.setenv("HIGHRANK_CACHE", str(tmp_path / "link" if linked else cache))
    file = build._compiled(build._compilers()[0], build.cache_folder())
    changed = {"file": file, "folder": cache, "parent": tmp_path / "shared"}[what]
    changed.chmod(mode)
    if is_trusted:
        assert is_loaded()
    else:
        assert f"{changed} can be changed by other users" in refused()


@pytest.mark.parametrize(
    ("members", "is_private"), [([], True), (["me"], True), (["me", "other"], False)]
)
def test_a_private_group_has_no_other_member(members, is_private, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build._home() != tmp_path  # it is that of the system
    group, user = SimpleNamespace(gr_name="me", gr_mem=members), SimpleNamespace(pw_name="me")
    monkeypatch.setattr(build.grp, "getgrgid", lambda number: group)
    monkeypatch.setattr(build.pwd, "getpwuid", lambda number: user)
    assert build._is_private(7) is is_private


@pytest.mark.cpp
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_a_regular_file_is_loaded(kind, compiled, tmp_path):
    other = compiled.rename(tmp_path / "elsewhere.so")
    compiled.symlink_to(other) if kind == "link" else os.mkfifo(compiled)
    assert f"{compiled} is no regular file, so it is not trusted" in refused()


@pytest.mark.cpp
@pytest.mark.parametrize("damage", ["cut", "one bit"])
def test_a_damaged_library_is_compiled_again(damage, compiled):
    """Loading a file that is cut ends the process by SIGBUS."""
    whole = compiled.read_bytes()
    at = len(whole) // 2
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    compiled.write_bytes(whole[:-10_000] if damage == "cut" else flipped)
    assert is_loaded()
    assert compiled.read_bytes() == whole


def test_auto_falls_back_and_logs_it_once(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    head = SOFTMAX.build().float()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            head.nll(make_features(3).float(), TARGET)
    assert [r.levelname for r in caplog.records].count("WARNING") == 1
    assert "no compiled loss kernels" in caplog.text


@pytest.mark.cpp
def test_the_first_use_compiles_and_the_next_does_not(quick_compiler, caplog, monkeypatch):
    with caplog.at_level(logging.INFO):
        first = build.library()._name
    assert "compiling the loss kernels" in caplog.text
    caplog.clear()
    build.library.cache_clear()
    monkeypatch.setattr(build.Path, "replace", None)
    assert build.library()._name == first


@pytest.mark.cpp
def test_processes_that_compile_at_the_same_time_agree(quick_compiler, tmp_path):
    running = [
        subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    names = {process.communicate()[0].strip() for process in running}
    assert len(names) == 1 and not any(process.returncode for process in running)
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == list(names)
