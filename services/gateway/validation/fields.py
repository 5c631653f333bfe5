"""Field types that both endpoints share, and one way to say what is wrong with a field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from services.gateway.errors import ApiError, bad_request

MAX_CHOICES = 128
MAX_STOPS = 4
_LONGEST_STOP = 16 * 1024  # characters; each is work for the detokenizer that all streams share
_MOST_TOKENS = 1024  # entries of a list of token ids, each of which costs every step of the batch
_INT64 = 2**63


class Body(BaseModel):
    """A request body: strict types, unknown fields ignored, null means the default."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def problem(message: str) -> PydanticCustomError:
    """A validation error whose text is exactly `message`."""
    return PydanticCustomError("invalid", "{text}", {"text": message})


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise problem("must be null, a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise problem(f"may hold at most {MAX_STOPS} strings")
    if "" in stops or value == []:
        raise problem("must hold 1 to 4 strings, none of them empty")
    if any(len(stop) > _LONGEST_STOP for stop in stops):
        raise problem(f"strings may have at most {_LONGEST_STOP} characters")
    return tuple(stops)


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise problem("must be an object of token id -> bias")
    if len(value) > _MOST_TOKENS:
        raise problem(f"may hold at most {_MOST_TOKENS} tokens")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        if not token.isdecimal() or len(token) > 9:
            raise problem("keys must be token ids (decimal digits)")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise problem("values must be numbers from -100 to 100")
        biases[int(token)] = float(bias)
    return biases


def _int64(value: int | None) -> int | None:
    if value is not None and not -_INT64 <= value < _INT64:
        raise problem("must fit in a signed 64-bit integer")
    return value


Stops = Annotated[tuple[str, ...], BeforeValidator(_stops)]
LogitBias = Annotated[dict[int, float], BeforeValidator(_logit_bias)]
Seed = Annotated[int | None, AfterValidator(_int64)]
StopTokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=_MOST_TOKENS)]
Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]


def path_of(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "content") -> "messages[0].content"."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def explain(error: ValidationError) -> ApiError:
    """A 400 that names the first field at fault. It never repeats the value."""
    first: ErrorDetails = error.errors(include_url=False, include_input=False)[0]
    param = str(first["ctx"]["param"]) if first["type"] == "at" else path_of(first["loc"])
    text = "is required" if first["type"] == "missing" else first["msg"].replace("Input should", "must")
    return bad_request(f"{param}: {text}" if param else text, param)


def problem_at(param: str, message: str) -> PydanticCustomError:
    """A validation error about `param`, which may be a path inside the field being validated."""
    return PydanticCustomError("at", "{text}", {"text": message, "param": param})
