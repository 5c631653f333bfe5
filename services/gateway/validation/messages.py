"""Chat messages -> what the chat template takes. Every supported form of a text ends as the same plain string."""

from __future__ import annotations

from typing import Any

from services.gateway.validation.fields import problem_at

ROLES = ("system", "developer", "user", "assistant", "tool")
Message = dict[str, Any]


def parse_messages(value: Any) -> list[Message]:
    """Check the `messages` field. Errors carry the path of the part at fault."""
    if not isinstance(value, list):
        raise problem_at("messages", "must be a list of messages")
    if not value:
        raise problem_at("messages", "must hold at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(value: Any, path: str) -> Message:
    if not isinstance(value, dict):
        raise problem_at(path, "must be an object with role and content")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise problem_at(f"{path}.role", f"must be one of {', '.join(ROLES)}")
    for field in ("audio", "function_call"):
        if value.get(field) is not None:
            raise problem_at(f"{path}.{field}", "not supported by this server")
    calls = _tool_calls(value.get("tool_calls"), role, f"{path}.tool_calls")
    content = value.get("content")
    if content is None and not (role == "assistant" and calls):
        raise problem_at(f"{path}.content", "must be a string or a list of text parts")
    # "developer" is the newer name of "system"; templates know only the older one.
    message: Message = {
        "role": "system" if role == "developer" else role,
        "content": "" if content is None else _text(content, f"{path}.content"),
    }
    if calls:
        message["tool_calls"] = calls
    for field in ("name", "tool_call_id"):
        if (text := value.get(field)) is not None:
            if not isinstance(text, str):
                raise problem_at(f"{path}.{field}", "must be a string")
            message[field] = text
    return message


def _text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise problem_at(path, "must be a string or a list of text parts")
    return "".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise problem_at(path, 'must be an object like {"type": "text", "text": "..."}')
    if part["type"] != "text":
        raise problem_at(path, "only text parts are supported by this server")
    if not isinstance(part.get("text"), str):
        raise problem_at(f"{path}.text", "must be a string")
    return str(part["text"])


def _tool_calls(value: Any, role: str, path: str) -> list[Any]:
    if value is None or value == []:
        return []
    if role != "assistant":
        raise problem_at(path, "only an assistant message has tool calls")
    if not isinstance(value, list):
        raise problem_at(path, "must be a list of tool calls")
    for index, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise problem_at(f"{path}[{index}]", "must be an object with a function that has a name")
    return value
