"""Logins that are kept between commands, by OpenSSH's own connection sharing."""
