"""Arguments to JSON and back, by the handler's signature.

The payload is a JSON object of the arguments by parameter name, so that any language can write
and read it.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.errors import InvalidValue, UndecodablePayload, UnencodableValue


def _encode_hook(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", round_trip=True)
    if isinstance(value, set | frozenset):
        return list(cast(frozenset[Any], value))
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is object:
        return value
    validate = getattr(kind, "model_validate_json", None)
    if callable(validate):
        return validate(msgspec.json.encode(value), **_names_too(kind))
    raise NotImplementedError(f"{kind.__name__} cannot be read from JSON")


@functools.cache
def _names_too(model: Any) -> dict[str, bool]:
    """Lets a model be read by its fields' names, as it is written, where they have an alias; a
    pydantic before 2.11 cannot."""
    known = inspect.signature(model.model_validate_json).parameters
    return {"by_alias": True, "by_name": True} if "by_name" in known else {}


_encoder = msgspec.json.Encoder(enc_hook=_encode_hook, decimal_format="string")


_UNENCODABLE = (
    TypeError,
    ValueError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    msgspec.MsgspecError,
)


def encode(value: object, what: str) -> bytes:
    """The value as JSON; `what` names it in the error."""
    try:
        if isinstance(value, msgspec.Raw):  # taken at its word, it could be anything
            msgspec.json.decode(value)
            return bytes(value)
        data = _encoder.encode(value)
        if b"null" in data and _infinite(msgspec.to_builtins(value, enc_hook=_encode_hook)):
            raise ValueError("NaN and infinity have no JSON form")
    except _UNENCODABLE as error:
        raise UnencodableValue(f"{what} cannot be encoded as JSON: {error}") from None
    return data


def _infinite(value: Any) -> bool:
    """Whether there is a float in it that msgspec would silently write as null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_infinite(part) for part in cast(Mapping[Any, Any], value).values())
    if isinstance(value, list | tuple):
        return any(_infinite(part) for part in cast(list[Any], value))
    return False


class Decoder:
    """Reads JSON as one type."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, dec_hook=_decode_hook)

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise UndecodablePayload(str(error)) from None
        except RecursionError:
            raise UndecodablePayload("the JSON is nested too deeply") from None
        except (ValueError, TypeError, NotImplementedError) as error:  # a model's own validation
            raise UndecodablePayload(f"{type(error).__name__}: {error}") from None


_ANY = Decoder(Any)
_OBJECT = Decoder(dict[str, msgspec.Raw])


def storable(text: str) -> str:
    """The text as every store takes it: names of files may hold half characters."""
    return text.encode("utf-8", "backslashreplace").decode()


def decode_any(data: bytes | msgspec.Raw) -> Any:
    """Reads JSON as plain Python values."""
    return _ANY.decode(data)


class Parameters:
    """The JSON side of a function's parameters.

    `injected` are parameters that the worker fills in (the context, resources): they are no part
    of the payload. `directives` are types that a function may return but that are no result.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        injected: frozenset[str] = frozenset(),
        directives: tuple[type, ...] = (),
    ) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        signature = inspect.signature(function)
        hints = type_hints(function)
        kept = [p for p in signature.parameters.values() if p.name not in injected]
        self._signature = signature.replace(parameters=kept)
        self._plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in kept)
        self._required = {p.name for p in kept if p.default is p.empty}
        self._optional = not self._plain or len(self._required) < len(kept)
        self._defaults = {p.name: p.default for p in kept}
        self._positional = [p.name for p in kept if p.kind is p.POSITIONAL_ONLY]
        self._argument = f"an argument of {self.name}"
        self._rest = next((p.name for p in kept if p.kind is p.VAR_POSITIONAL), None)
        self._extra = next((p.name for p in kept if p.kind is p.VAR_KEYWORD), None)
        self._names = [p.name for p in kept if p.name != self._extra]
        if self._rest:
            self._positional = self._names[: self._names.index(self._rest)]
        self._decoder = Decoder(self._struct(kept, hints))
        self._call = msgspec.defstruct("Call", self._names) if self._plain else None
        """What most calls are bound to: made and encoded in half the time that a dict takes."""
        self._others = Decoder(_resolvable(hints.get(self._extra or "", Any)))
        returned = _without(_resolvable(hints.get("return", Any)), directives)
        try:
            self.result = Decoder(returned)
        except TypeError as error:
            raise InvalidValue(
                self.name, f"what it returns cannot be read from JSON: {error}"
            ) from None

    def _struct(
        self, parameters: list[inspect.Parameter], hints: Mapping[str, Any]
    ) -> type[msgspec.Struct]:
        fields: list[Any] = []
        for p in parameters:
            kind = _resolvable(hints.get(p.name, Any))
            if p.kind is p.VAR_POSITIONAL:
                fields.append((p.name, list[kind] | UnsetType, UNSET))
            elif p.kind is p.VAR_KEYWORD:
                continue
            elif p.default is p.empty:
                fields.append((p.name, kind))
            else:
                fields.append((p.name, kind | UnsetType, UNSET))
        try:
            struct = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
            msgspec.json.Decoder(struct, dec_hook=_decode_hook)
        except TypeError as error:
            raise InvalidValue(
                self.name, f"a parameter's type cannot be read from JSON: {error}"
            ) from None
        return struct

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The payload of a call. A call that the function would refuse raises TypeError."""
        if not kwargs and self._call is not None and len(args) == len(self._names):
            payload = encode(self._call(*args), self._argument)
        else:
            payload = encode(self._bind(args, kwargs), self._argument)
        try:
            self._decoder.decode(payload if self._extra is None else self._split(payload)[0])
        except UndecodablePayload as error:
            raise TypeError(f"{self.name}(): {error}") from None
        return payload

    def encode_some(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The payload of a call that leaves arguments out; for comparing."""
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        return encode(self._flat(bound.arguments), self._argument)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if self._plain and len(args) <= len(self._names):
            bound = dict(zip(self._names, args, strict=False))
            if (not kwargs or bound.keys().isdisjoint(kwargs)) and self._covers(bound, kwargs):
                return bound
        try:
            arguments = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        return self._flat(arguments)

    def _flat(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name; those of `**kwargs` stand beside the others."""
        flat = dict(arguments)
        for name, value in flat.pop(self._extra or "", {}).items():
            if name in self._names:
                raise TypeError(f"{self.name}(): {name!r} is given twice")
            flat[name] = value
        return flat

    def _covers(self, bound: dict[str, Any], kwargs: dict[str, Any]) -> bool:
        bound.update(kwargs)
        return (
            self._required <= bound.keys()
            and len(bound) <= len(self._names)
            and (not kwargs or all(name in self._names for name in kwargs))
        )

    def decode(self, payload: bytes | msgspec.Raw) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the call that a payload stands for."""
        if self._extra is None:
            named, extra = payload, {}
        else:
            named, extra = self._split(payload)
        values = msgspec.structs.asdict(self._decoder.decode(named))
        if self._optional:
            values = {name: value for name, value in values.items() if value is not UNSET}
        if self._plain:
            return [], values
        rest: list[Any] = values.pop(self._rest, []) if self._rest else []
        given = [name in values for name in self._positional]
        # What stands before a positional argument has to be given, too.
        count = len(given) if rest else len(given) - [*reversed(given), True].index(True)
        args = [values.pop(name, self._defaults[name]) for name in self._positional[:count]]
        return [*args, *rest], values | extra

    def _split(self, payload: bytes | msgspec.Raw) -> tuple[bytes | msgspec.Raw, dict[str, Any]]:
        """The named arguments, and those that `**kwargs` takes."""
        parts: dict[str, msgspec.Raw] = _OBJECT.decode(payload)
        extra = {
            name: self._others.decode(parts.pop(name)) for name in parts.keys() - set(self._names)
        }
        return msgspec.json.encode(parts), extra


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved; those that cannot be (local names) are left out."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return _resolved_one_by_one(function)


def _resolved_one_by_one(function: Callable[..., Any]) -> dict[str, Any]:
    """One name that cannot be resolved must not take the others with it."""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    hints: dict[str, Any] = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        holder = types.SimpleNamespace(__annotations__={name: hint})
        try:
            hints |= typing.get_type_hints(holder, names, include_extras=True)
        except (NameError, TypeError, AttributeError):
            continue
    return hints


_ANYTHING = (object, inspect.Parameter.empty, typing.NoReturn)


def _resolvable(hint: Any) -> Any:
    if hint is type(None) or hint is None:
        return None
    if isinstance(hint, typing.TypeVar | str) or hint in _ANYTHING:
        return Any
    return hint


def _without(hint: Any, directives: tuple[type, ...]) -> Any:
    """The type of a result: what is returned, but for what is no result."""
    if hint in directives:
        return Any
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kept = tuple(part for part in typing.get_args(hint) if part not in directives)
        return typing.Union[kept] if kept else Any  # noqa: UP007  # made at run time
    return hint
