"""The checks of ``remote-tool check``: of each server, and between servers."""
