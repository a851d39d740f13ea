"""Shared by client and servers. Standard library and Python 3.8 only, as it is sent to servers."""
