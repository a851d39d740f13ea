"""The conda installers: exact versions, each with a SHA-256 that is verified before it runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from remote_tool.config.environment import EnvironmentKind
from remote_tool.environments.step import Step
from remote_tool.errors import EnvironmentSetupError
from remote_tool.readable import readable_size

if TYPE_CHECKING:
    from remote_tool.config.environment import Environment
    from remote_tool.environments.facts import ServerFacts

# Relative to $HOME of the server.
REMOTE_CACHE = ".cache/remote_tool"
# The exit status of a download that failed on the server; then this machine sends the file.
NOT_DOWNLOADED = 75
DOWNLOAD_TIMEOUT = 1800.0
# Installers have up to 200 MiB.
MOST_BYTES = 1024**3

_SOURCES = {
    EnvironmentKind.MINICONDA: ("https://repo.anaconda.com/miniconda/", "Miniconda3-py312_26.5.3-1-{}.sh"),
    EnvironmentKind.MINIFORGE: (
        "https://github.com/conda-forge/miniforge/releases/download/26.3.2-3/",
        "Miniforge3-26.3.2-3-{}.sh",
    ),
}
_DIGESTS = {
    (EnvironmentKind.MINICONDA, "Linux-x86_64"): "ecb43ee4ae30a7a5af87737e9548ceb21f0a10ec55b8dc40d247aa925b80bfec",
    (EnvironmentKind.MINICONDA, "Linux-aarch64"): "9e48caecbad9cc43d8a483584f0a5e1da2754189416a8811aaada3f58aceeb67",
    (EnvironmentKind.MINICONDA, "MacOSX-arm64"): "f5767f038d5aa8299254b96b7e0db4f086c29e4b3a620fc38fea51974f66abdd",
    (EnvironmentKind.MINIFORGE, "Linux-x86_64"): "848194851a98903134187fbb4ab50efe87b003e0c0f808f97644b7524a62bf2c",
    (EnvironmentKind.MINIFORGE, "Linux-aarch64"): "2c113a69297e612b01ca0f320c22a3107a11f2ab9b573d79ac868a175945ce29",
    (EnvironmentKind.MINIFORGE, "Linux-ppc64le"): "df7e80ee070ccc6031e2710eb4cf81ee0012264b587306b5aa3890d3d89edd97",
    (EnvironmentKind.MINIFORGE, "MacOSX-arm64"): "59168f1e24d0a4ad9932021170809fca836cd240e183eeeb331d5bcfc0098168",
    (EnvironmentKind.MINIFORGE, "MacOSX-x86_64"): "39273e4c89a0a1af4538010615d44ae8f44e1af41007e02def593d20f316b003",
}


@dataclass(frozen=True)
class ChosenInstaller:
    """One installer file.

    Attributes:
        name: Its file name.
        sha256: 64 hex digits, lower case.
        url: Its URL; empty for a local file.
        key: The key of configs.yaml that sets another one.
        file: A local file; None for a URL.
    """

    name: str
    sha256: str
    key: str
    url: str = ""
    file: Path | None = None

    @property
    def remote_path(self) -> str:
        """Return its path on a server, relative to ``$HOME``, with its checksum in the name."""
        return f"{REMOTE_CACHE}/{self.cache_name}"

    @property
    def cache_name(self) -> str:
        return f"{self.sha256[:16]}-{self.name}"


def choose_installer(environment: Environment, facts: ServerFacts) -> ChosenInstaller:
    """Choose the configured installer, or the pinned one for the server's machine.

    Raises:
        EnvironmentSetupError: There is none for this machine.
    """
    configured = environment.installer
    key = f"environment.{environment.kind}.installer"
    if configured is not None:
        name = configured.file.name if configured.file else Path(urlsplit(configured.url or "").path).name
        name, sha256 = name or "installer.sh", configured.sha256.lower()
        return ChosenInstaller(name, sha256, key, configured.url or "", configured.file)
    system = {"Darwin": "MacOSX"}.get(facts.system, facts.system)
    platform = f"{system}-{facts.machine}"
    digest = _DIGESTS.get((environment.kind, platform))
    if digest is None or facts.libc != "glibc":
        raise EnvironmentSetupError(
            f"{facts.server}: {environment.kind} has no installer for {platform} with {facts.libc}",
            hint=f"set environment to venv, uv or {{existing: PREFIX}}, or {key} to an installer of your own:"
            " {url: URL, sha256: HASH} or {file: PATH, sha256: HASH}",
            server=facts.server,
        )
    folder, name = _SOURCES[environment.kind]
    return ChosenInstaller(name.format(platform), digest, key, folder + name.format(platform))


def plan_download(installer: ChosenInstaller) -> Step:
    """Plan to download an installer on the server; the exit status is NOT_DOWNLOADED if that fails."""
    # A URL may contain a password, so it is not in argv, which all users of the server see. The checksum makes a
    # redirect harmless; https only keeps the download private.
    protocols = "=https" if installer.url.startswith("https:") else "=http,https"
    script = f"""
url={shlex.quote(installer.url)}
protocols={protocols}
not_downloaded={NOT_DOWNLOADED}
most_bytes={MOST_BYTES}
too_large={shlex.quote(too_large(installer))}
{verified_file(installer)}
{_DOWNLOAD}
"""
    return Step("download", f"Downloading {installer.name}", script, DOWNLOAD_TIMEOUT)


def too_large(installer: ChosenInstaller) -> str:
    """Return the message about a download that exceeds MOST_BYTES."""
    return f"{installer.name} is larger than {readable_size(MOST_BYTES)} and was not downloaded"


def verified_file(installer: ChosenInstaller) -> str:
    """Return shell lines that set ``folder`` and ``file``, and the functions ``hash_of`` and ``verify FILE``."""
    return f"""
folder=$HOME/{REMOTE_CACHE}
file=$HOME/{shlex.quote(installer.remote_path)}
name={shlex.quote(installer.name)}
expected={installer.sha256}
key={installer.key}
{_VERIFY}
"""


_VERIFY = r"""
hash_of() {
    if command -v sha256sum >/dev/null; then sha256sum < "$1"
    elif command -v shasum >/dev/null; then shasum -a 256 < "$1"
    elif command -v openssl >/dev/null; then openssl dgst -sha256 -r < "$1"
    elif command -v python3 >/dev/null; then
        python3 -I -S -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())' < "$1"
    else refuse "cannot verify $name: sha256sum, shasum, openssl and python3 are all missing" "install coreutils"
    fi | { read -r digest _ && printf %s "$digest"; }
}
verify() {
    found=$(hash_of "$1")
    [ "$found" = "$expected" ] && return
    rm -f "$1"
    refuse "$name has the wrong checksum and was not run: its sha256 is $found, expected $expected" \
        "check $key, or try again: the download may be corrupted"
}
"""

_DOWNLOAD = r"""
(umask 077; mkdir -p "$folder") || exit
if [ -f "$file" ] && [ "$(hash_of "$file")" = "$expected" ]; then echo "$name is already downloaded"; exit 0; fi
part=$file.$$.part
trap 'rm -f "$part"' EXIT
trap 'exit 143' TERM
fetch() (
    # Limits every program, even if the server sends no size; in blocks of 512 bytes.
    ulimit -f "$((most_bytes / 512))" 2>/dev/null
    if command -v curl >/dev/null; then
        printf 'url = "%s"\n' "$url" | curl -K - -fsSL --proto "$protocols" --proto-redir "$protocols" \
            --connect-timeout 15 --speed-limit 1000 --speed-time 60 --retry 2 --max-filesize "$most_bytes" -o "$part"
    elif command -v wget >/dev/null; then
        printf '%s\n' "$url" | wget -q -i - -T 30 -t 3 -O "$part"
    elif command -v python3 >/dev/null; then
        printf '%s\n' "$url" | python3 -I -c '
import shutil, sys, urllib.request
url = sys.stdin.readline().strip()
try:
    with urllib.request.urlopen(url, timeout=30) as answer, open(sys.argv[1], "wb") as file:
        shutil.copyfileobj(answer, file)
except OSError as error:
    sys.exit("%s" % error)
' "$part"
    else
        echo 'Cannot download: curl, wget and python3 are all missing' >&2
        return 1
    fi
)
fetch || {
    status=$?
    size=$(if [ -f "$part" ]; then wc -c <"$part"; else echo 0; fi)
    # 63: curl knows the size in advance.
    if [ "$status" -eq 63 ] || [ "$size" -ge "$most_bytes" ]; then refuse "$too_large" "check $key"; fi
    exit "$not_downloaded"
}
verify "$part"
mv -f "$part" "$file"
"""
