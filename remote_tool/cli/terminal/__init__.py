"""This side's terminal, while a program on a server has it."""
