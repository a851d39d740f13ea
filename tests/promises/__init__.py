"""What users rely on, shown through what users have: the command line, the Python API, and documented files."""
