"""Stand-ins for parts of the standard library that are slow to import: every answer of a server would wait for them.

They stay while a server starts Python for each request; without that, the library's own modules would do.
"""
