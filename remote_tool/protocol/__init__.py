"""What both sides know. Standard library and Python 3.8 only: it is sent to servers."""
