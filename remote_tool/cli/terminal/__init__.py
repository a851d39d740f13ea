"""This side's terminal, while a program on a server has it."""

__all__ = ["local_screen"]
