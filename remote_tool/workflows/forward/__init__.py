"""Carry connections between ports here and ports of servers."""
