"""The processes of a server, and what each of them does."""

import psutil


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def role_of(process: psutil.Process, server: int) -> str:
    """What a process of the family of `server` does: server, worker, evaluator or evaluation.

    Raises:
        psutil.Error: it has ended.
    """
    if process.pid == server:
        return "server"
    command = process.cmdline()
    if "service.jobs.child" in command:
        return "evaluation"
    return "evaluator" if "evaluator" in command else "worker"
