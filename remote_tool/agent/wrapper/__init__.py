"""Commands that begin behind a launch command, like docker exec."""
