"""What every test of kept logins has: a short folder for sockets, and masters that end with the test."""

from __future__ import annotations

from tests.extended.transport.test_kept import _patient, config, runtime  # noqa: F401 - fixtures
