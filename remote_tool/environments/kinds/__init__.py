"""The kinds of environments, one module each, named as in :class:`remote_tool.config.environment.EnvironmentKind`.

A module has ``plan(request: EnvironmentRequest) -> EnvironmentPlan``.
"""

__all__ = ["image"]
