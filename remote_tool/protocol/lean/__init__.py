"""Replacements for parts of the standard library whose import would delay every answer of a server.

Needed as long as a server starts Python for each request.
"""
