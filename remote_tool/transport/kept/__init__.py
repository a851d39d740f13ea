"""Logins that are kept between commands, by OpenSSH's own connection sharing."""

__all__ = ["find", "folder", "listing", "master", "record", "start"]
