"""Work in numbered parts that can be resumed: what fan-outs and sweeps have in common."""

__all__ = ["placeholders", "records"]
