"""An installer of one's own: what is sent, and what hints say."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.promises.conftest import Desk


def test_an_installer_in_the_project_is_not_sent_with_it(desk: Desk) -> None:
    file = desk.root / "installers" / "Mini.sh"
    file.parent.mkdir()
    file.write_text("echo made by hand\n")
    (file.parent / "notes.txt").touch()
    own = {"file": "./installers/Mini.sh", "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    desk.configure(environment={"miniconda": {"installer": own}})
    desk.does("rsync")
    assert [path.name for path in (desk.there() / "installers").iterdir()] == ["notes.txt"]


def test_the_hint_without_a_network_names_all_keys(desk: Desk) -> None:
    digest = "ab" * 32
    installer = {"url": "http://127.0.0.1:9/Mini.sh", "sha256": digest}
    desk.configure(environment={"miniconda": {"installer": installer}})
    said = " ".join(desk.refuses("prepare").split())
    assert f"environment.miniconda.installer: {{file: PATH, sha256: {digest}}}" in said
    assert "environment: {existing: PREFIX}" in said
