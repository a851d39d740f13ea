"""Use the Python API: start a job, print its lines, stop another one. Run this in a prepared workspace."""

from __future__ import annotations

from remote_tool import JobState, Workspace


def main() -> None:
    """Use the first configured server."""
    workspace = Workspace.find()
    server = next(iter(workspace.config.servers))
    workspace.prepare([server])

    job = workspace.start(server, "python -c 'print(6 * 7)'", tags=["sample"])
    for line in job.tail():
        print(f"{server} says {line}")
    print(f"job {job.job.key} {job.wait()}")

    endless = workspace.start(server, "python hello_world.py", env={"GREETING": "hello"})
    print(f"stopped: {endless.kill() is JobState.KILLED}")


if __name__ == "__main__":
    main()
