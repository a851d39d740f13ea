"""The demo: throw-away SSH servers on this machine, and the whole journey on them."""
