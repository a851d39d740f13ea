"""Tables, with and without Rich."""
