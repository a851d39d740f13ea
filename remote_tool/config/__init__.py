__all__ = [
    "artifacts",
    "data_sets",
    "devices",
    "forms",
    "hosts",
    "limits",
    "listed",
    "loading",
    "model",
    "servers",
    "sweep_file",
    "sweep_values",
]
