"""Logins that are kept between commands, by OpenSSH's own connection sharing."""

__all__ = ["connection", "folder", "listing", "master", "record", "start"]
