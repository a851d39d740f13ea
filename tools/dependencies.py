"""Check what the package needs at run time, with what that needs: licenses, and known vulnerabilities.

It prints nothing when all is well, and one sentence where nobody could be asked about vulnerabilities.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distribution, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Licenses that ask for their text, and nothing else of a program that imports the library.
ALLOWED = {
    *("MIT", "MIT License", "MIT-0", "ISC License", "ISC License (ISCL)", "PSF-2.0"),
    *("BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "Apache Software License"),
    # Of asyncssh: its own files stay under this license when they are changed, and we change none.
    "EPL-2.0",
}
ANSWER_SECONDS = 30


def main() -> int:
    """Return 1 for a license that is not in the list, or for a vulnerability."""
    needed = dependencies("remote-tool")
    problems = [f"{name}: its license is not in the list: {found}" for name in needed if (found := refused(name))]
    problems += vulnerabilities(needed)
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


def dependencies(package: str) -> dict[str, str]:
    """Return the version of each package that pip installs along."""
    extras: dict[str, set[str]] = {}
    wanted = [Requirement(package)]
    while wanted:
        each = wanted.pop()
        name = canonicalize_name(each.name)
        asked = {"", *each.extras} - extras.get(name, set())
        extras.setdefault(name, set()).update(asked)
        further = [Requirement(text) for text in requires(name) or ()] if asked else []
        wanted += [
            other
            for other in further
            if not other.marker or any(other.marker.evaluate({"extra": ask}) for ask in asked)
        ]
    return {name: distribution(name).version for name in sorted(extras) if name != package}


def refused(name: str) -> str:
    """Return the license of a package if none of its choices is in the list."""
    data = distribution(name).metadata.json
    classifiers = [text.rpartition(" :: ")[2] for text in data.get("classifier", []) if text.startswith("License")]
    said = str(data.get("license_expression") or data.get("license") or " AND ".join(classifiers) or "unknown")
    parts = [part.strip("() ") for part in re.split(r" AND ", said)]
    return "" if all(ALLOWED.intersection(part.split(" OR ")) for part in parts) else said


def vulnerabilities(needed: dict[str, str]) -> list[str]:
    """Return what PyPI knows about these versions."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in needed.items())
        file.flush()
        options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json", "-r", file.name]
        command = [sys.executable, "-m", "pip_audit", *options]
        try:
            answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=ANSWER_SECONDS)
            found = json.loads(answer.stdout)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError):
            found = []
    known = [each for each in found if "vulns" in each]
    if len(known) < len(needed):
        print(
            f"PyPI did not say whether {len(needed) - len(known)} of {len(needed)} dependencies have vulnerabilities."
        )
    return [f"{each['name']} {each['version']}: {hole['id']}" for each in known for hole in each["vulns"]]


if __name__ == "__main__":
    sys.exit(main())
