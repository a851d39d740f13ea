"""What commands do, a room for each subject; a room imports only from those below it, as pyproject.toml lists them."""
