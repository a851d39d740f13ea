"""The kinds of environments, one module each: :mod:`remote_tool.environments.choice` loads them by name.

A module has ``plan(request: EnvironmentRequest) -> EnvironmentPlan``.
"""

__all__: list[str] = []
