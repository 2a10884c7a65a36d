"""Assertions on what was enqueued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from headrace.app.app import App
from headrace.app.options import Seconds
from headrace.app.task import Task
from headrace.core import codec
from headrace.core.model import Job
from headrace.core.states import State
from headrace.core.values import milliseconds

AnyTask = Task[..., Any] | str


class Where(TypedDict, total=False):
    """Which of an app's jobs; what is left out does not restrict."""

    queue: str
    state: State | str
    tag: str
    key: str


async def jobs(app: App, type: AnyTask | None = None, **where: Unpack[Where]) -> list[Job]:
    """The jobs of a type (a task or its name), in the order in which they were enqueued."""
    wanted: dict[str, Any] = {**where}
    if type is not None:
        wanted["type"] = _name(type)
    if "state" in wanted:
        wanted["states"] = [wanted.pop("state")]
    return [job async for job in app.find(limit=None, **wanted)][::-1]


def arguments(job: Job) -> dict[str, Any]:
    """The arguments of a job by name, as plain JSON values."""
    return codec.decode_any(job.spec.payload)


async def assert_enqueued(
    app: App,
    task: AnyTask,
    *args: Any,
    count: int | None = 1,
    queue: str | None = None,
    state: State | str | None = None,
    delay: Seconds | None = None,
    priority: int | None = None,
    tags: Sequence[str] | None = None,
    **kwargs: Any,
) -> list[Job]:
    """Fails unless exactly `count` jobs fit (None: at least one); returns them.

    Arguments that are not named do not matter. An argument that is called like one of the
    parameters here is given by its position.
    """
    expected = _Expected(task, args, kwargs, queue, state, delay, priority, tags)
    found = await jobs(app)
    fitting = [job for job in found if not expected.differences(job)]
    if len(fitting) == count or (count is None and fitting):
        return fitting
    wanted = "at least once" if count is None else _times(count)
    raise AssertionError(
        f"{expected} was enqueued {_times(len(fitting))}, not {wanted}\n{_near(expected, found)}"
    )


async def assert_not_enqueued(app: App, task: AnyTask, *args: Any, **kwargs: Any) -> None:
    """Fails if any job fits; takes what `assert_enqueued` takes."""
    await assert_enqueued(app, task, *args, count=0, **kwargs)


class _Expected:
    """What a job must be like."""

    def __init__(
        self,
        task: AnyTask,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        queue: str | None,
        state: State | str | None,
        delay: Seconds | None,
        priority: int | None,
        tags: Sequence[str] | None,
    ) -> None:
        self.type = _name(task)
        if isinstance(task, str):
            if args:
                raise TypeError("a task given by its name has no positions; name the arguments")
            payload = codec.encode(kwargs, f"an argument of {task!r}")
        else:
            payload = task.handler.parameters.encode_some(args, kwargs)
        self.arguments: dict[str, Any] = codec.decode_any(payload)
        facts: Mapping[str, Any] = {
            "queue": queue,
            "state": state and State(state),
            "delay": None if delay is None else milliseconds("delay", delay) / 1000,
            "priority": priority,
            "tags": None if tags is None else sorted(tags),
        }
        self.facts = {name: fact for name, fact in facts.items() if fact is not None}

    def __str__(self) -> str:
        facts = "".join(f", {name} {_shown(fact)}" for name, fact in self.facts.items())
        return f"{_call(self.type, self.arguments)}{facts}"

    def differences(self, job: Job) -> list[str]:
        """In what the job is not as expected."""
        if job.type != self.type:
            return ["type"]
        found = arguments(job)
        differences = [
            f"{name} is {_shown(found[name])}" if name in found else f"{name} is not given"
            for name, value in self.arguments.items()
            if name not in found or not _same(found[name], value)
        ]
        for name, fact in self.facts.items():
            if (actual := _fact(job, name)) != fact:
                differences.append(f"{name} is {_shown(actual)}")
        return differences


def _near(expected: _Expected, found: Sequence[Job]) -> str:
    """What was enqueued instead: the same type first."""
    same = [job for job in found if job.type == expected.type]
    lines = [
        f"  {job.id} {_call(job.type, arguments(job))} in {job.queue!r}, {job.state}: "
        + ("; ".join(expected.differences(job)) or "fits")
        for job in same[:10]
    ]
    if len(same) > 10:
        lines.append(f"  … and {len(same) - 10} more")
    if lines:
        return "\n".join((f"of type {expected.type!r} there are:", *lines))
    others = sorted({job.type for job in found})
    return f"there are only jobs of type {', '.join(others)}" if others else "there are no jobs"


def _fact(job: Job, name: str) -> Any:
    match name:
        case "queue":
            return job.queue
        case "state":
            return job.state
        case "delay":
            return (job.spec.run_at - job.spec.created_at) / 1000
        case "priority":
            return job.priority
        case _:
            return sorted(job.spec.tags)


def _same(one: Any, other: Any) -> bool:
    """Equal in JSON: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _name(task: AnyTask) -> str:
    return task if isinstance(task, str) else task.type


def _call(type: str, named: Mapping[str, Any]) -> str:
    return f"{type}({', '.join(f'{name}={_shown(value)}' for name, value in named.items())})"


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, State) else repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
