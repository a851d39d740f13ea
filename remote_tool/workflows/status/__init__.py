"""Ask servers about jobs, and carry out what was left to be done when they answer again."""

__all__ = ["clock_skew", "link_news", "pending_stops", "query", "refresh"]
