"""Commands behind a launch command, like docker exec."""
