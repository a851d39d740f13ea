"""What a server runs is tested with the pretend server of the agent's tests."""

from tests.extended.agent.conftest import installed, server

__all__ = ["installed", "server"]
