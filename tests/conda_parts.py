"""A conda of our own making: a self-extracting installer as the vendors' are, and a channel with a tiny Python.

Its ``conda`` solves and links with py-rattler, so what it makes is what conda makes.
"""

from __future__ import annotations

import ensurepip
import hashlib
import io
import json
import platform
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

PYTHON = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
SHORT_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"lib/python{SHORT_VERSION}/site-packages"
VERSION = platform.python_version()

# As the vendors' installers: -b -p PREFIX, PREFIX must not be there, and PREFIX ends up inside of the files.
_INSTALLER = """\
#!/bin/sh
# The payload follows the line of at signs.
set -eu
batch= prefix=
while getopts bp: option; do
    case $option in b) batch=yes ;; p) prefix=$OPTARG ;; *) exit 2 ;; esac
done
[ "$batch" ] && [ "$prefix" ] || { echo 'ERROR: -b and -p are needed' >&2; exit 1; }
[ ! -e "$prefix" ] || { echo "ERROR: File or directory already exists: $prefix" >&2; exit 1; }
echo "executed $prefix" >>"$HOME/installer-calls"
mkdir -p "$prefix"
sed '1,/^@@@@@@@@$/d' "$0" | tar -xzf - -C "$prefix"
@WAIT@
sed "s|@PREFIX@|$prefix|g" "$prefix/bin/conda.in" >"$prefix/bin/conda"
chmod +x "$prefix/bin/conda"
mkdir "$prefix/condabin"
cp "$prefix/bin/conda" "$prefix/condabin/conda"
echo "installation finished."
exit 0
@@@@@@@@
"""

_CONDA = '''\
#!@PREFIX@/bin/python
"""The commands of conda that remote-tool uses."""
import argparse, asyncio, json, os, sys
from pathlib import Path

ROOT = Path("@PREFIX@")


async def link(prefix, channels, specs):
    import rattler

    platforms = ["linux-64", "noarch"]
    records = await rattler.solve(channels, specs, platforms=platforms)
    await rattler.install(records, prefix, cache_dir=ROOT / "pkgs", show_progress=False)
    for record in records:
        print(f"linked {record.name.normalized} {record.version}")


def create(arguments):
    prefix = Path(arguments.prefix)
    if prefix.exists():
        sys.exit(f"CondaValueError: prefix already exists: {prefix}")
    if not arguments.override_channels:
        sys.exit("CondaToSNonInteractiveError: Terms of Service have not been accepted")
    asyncio.run(link(prefix, arguments.channel, arguments.specs))
    (prefix / "channels").write_text(json.dumps(arguments.channel))


def channels_of(wanted):
    """As conda 26.7: those of the file, then the configured ones; there is no default any more."""
    channels = wanted.get("channels", [])
    if "nodefaults" not in channels:
        channels = [*channels, *filter(None, os.environ.get("CONDA_CHANNELS", "").split(","))]
    if not channels:
        sys.exit("NoChannelsConfiguredError: No channels are configured.")
    return [channel for channel in channels if channel != "nodefaults"]


def update(arguments):
    import yaml

    wanted = yaml.safe_load(Path(arguments.file).read_text())
    prefix = Path(arguments.prefix)
    here = [json.loads(file.read_text()) for file in (prefix / "conda-meta").glob("*.json")]
    pinned = [f"{record['name']}=={record['version']}" for record in here]
    asyncio.run(link(prefix, channels_of(wanted), [*pinned, *wanted["dependencies"]]))


def main():
    with (ROOT / "calls").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\\n")
    if sys.argv[1:] == ["--version"]:
        print("conda 26.5.3")
        return
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    creating = commands.add_parser("create")
    creating.add_argument("specs", nargs="+")
    creating.add_argument("-c", "--channel", action="append", default=[])
    creating.add_argument("--override-channels", action="store_true")
    creating.set_defaults(do=create)
    updating = commands.add_parser("env").add_subparsers(required=True).add_parser("update")
    updating.add_argument("-f", "--file", required=True)
    updating.set_defaults(do=update)
    for each in (creating, updating):
        each.add_argument("-p", "--prefix", required=True)
        each.add_argument("-y", "--yes", action="store_true")
        each.add_argument("-q", "--quiet", action="store_true")
    arguments = parser.parse_args()
    arguments.do(arguments)


main()
# The solver's threads may outlive the interpreter, which then aborts.
sys.stdout.flush()
os._exit(0)
'''

_ACTIVATE = """\
echo 'activating prints this'
export TINY_HOME="$CONDA_PREFIX/share/tiny"
export PATH="$CONDA_PREFIX/share/tiny/bin:$PATH"
unset TINY_LEFTOVER
"""


def build_installer(file: Path, *, wait_for: Path | None = None) -> str:
    """Write an installer; return its SHA-256.

    Args:
        file: The installer.
        wait_for: The installer stops half-way until this file is there.
    """
    payload = io.BytesIO()
    with tarfile.open(fileobj=payload, mode="w:gz") as archive:
        _add(archive, "bin/conda.in", _CONDA.encode())
        _add(archive, "pyvenv.cfg", f"home = {PYTHON.parent}\n".encode())
        _add(archive, f"{LIBRARY}/outside.pth", f"{sysconfig.get_path('purelib')}\n".encode())
        _add_link(archive, "bin/python", str(PYTHON))
    wait = f"while [ ! -e '{wait_for}' ]; do sleep 0.05; done" if wait_for else ""
    data = _INSTALLER.replace("@WAIT@", wait).encode() + payload.getvalue()
    file.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def build_channel(folder: Path) -> None:
    """Write a channel with python, pip and one small package."""
    python: dict[str, bytes | str] = {
        "bin/python": str(PYTHON),
        "pyvenv.cfg": f"home = {PYTHON.parent}\ninclude-system-site-packages = false\n".encode(),
        f"{LIBRARY}/README.txt": b"packages\n",
        "etc/conda/activate.d/tiny.sh": _ACTIVATE.encode(),
    }
    extra: dict[str, bytes | str] = {f"{LIBRARY}/from_the_channel.py": b"ANSWER = 42\n"}
    packages = {
        **_package(folder, "python", VERSION, python),
        **_package(folder, "pip", "1.0", dict(_pip_files())),
        **_package(folder, "extra", "2.0", extra),
    }
    _write_repodata(folder / "noarch", packages)
    _write_repodata(folder / "linux-64", {})


def _pip_files() -> list[tuple[str, bytes | str]]:
    wheel = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return [(f"{LIBRARY}/{name}", archive.read(name)) for name in archive.namelist() if not name.endswith("/")]


def _package(folder: Path, name: str, version: str, files: dict[str, bytes | str]) -> dict[str, dict[str, object]]:
    """Write one package; text instead of bytes is where a link leads."""
    index = {
        "name": name,
        "version": version,
        "build": "0",
        "build_number": 0,
        "depends": [],
        "subdir": "noarch",
        "noarch": "generic",
    }
    entries = [
        {
            "_path": path,
            "path_type": "softlink" if isinstance(content, str) else "hardlink",
            "sha256": hashlib.sha256(b"" if isinstance(content, str) else content).hexdigest(),
            "size_in_bytes": 0 if isinstance(content, str) else len(content),
        }
        for path, content in files.items()
    ]
    file = folder / "noarch" / f"{name}-{version}-0.tar.bz2"
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:bz2", compresslevel=1) as archive:
        _add(archive, "info/index.json", json.dumps(index).encode())
        _add(archive, "info/paths.json", json.dumps({"paths": entries, "paths_version": 1}).encode())
        _add(archive, "info/files", "".join(f"{path}\n" for path in files).encode())
        for path, content in files.items():
            if isinstance(content, str):
                _add_link(archive, path, content)
            else:
                _add(archive, path, content)
    data = file.read_bytes()
    digests = {"sha256": hashlib.sha256(data).hexdigest(), "md5": hashlib.md5(data).hexdigest(), "size": len(data)}
    return {file.name: {**index, **digests}}


def _write_repodata(folder: Path, packages: dict[str, dict[str, object]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    repodata = {"info": {"subdir": folder.name}, "packages": packages, "packages.conda": {}, "repodata_version": 1}
    (folder / "repodata.json").write_text(json.dumps(repodata))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = 0o644
    archive.addfile(entry, io.BytesIO(data))


def _add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.SYMTYPE
    entry.linkname = target
    archive.addfile(entry)
