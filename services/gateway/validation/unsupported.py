"""What can't be honoured is refused by name; silently ignoring it would give a wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.gateway.errors import bad_request

_Check = Callable[[Any], bool]


def _is_plain_text(value: Any) -> bool:
    return bool(value == {"type": "text"})


_NO_TOOLS: dict[str, _Check] = {
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value == "none",
    "functions": lambda value: value == [],
    "function_call": lambda value: value == "none",
}
_NO_GRAMMAR: dict[str, _Check] = {
    "response_format": _is_plain_text,
    "structured_outputs": lambda value: False,
    "guided_json": lambda value: False,
    "guided_regex": lambda value: False,
    "guided_choice": lambda value: False,
    "guided_grammar": lambda value: False,
    "grammar": lambda value: False,
}
_NO_PROMPT_TRICKS: dict[str, _Check] = {
    "use_beam_search": lambda value: value is False,
    "prompt_logprobs": lambda value: value is False,
    "truncate_prompt_tokens": lambda value: False,
}
CHAT: dict[str, _Check] = {
    **_NO_TOOLS,
    **_NO_GRAMMAR,
    **_NO_PROMPT_TRICKS,
    "audio": lambda value: False,
    "modalities": lambda value: value == ["text"],
    "chat_template": lambda value: False,
    "chat_template_kwargs": lambda value: value == {},
    "continue_final_message": lambda value: value is False,
    "add_generation_prompt": lambda value: value is True,
    "echo": lambda value: value is False,
}
COMPLETIONS: dict[str, _Check] = {
    **_NO_GRAMMAR,
    **_NO_PROMPT_TRICKS,
    "echo": lambda value: value is False,
    "suffix": lambda value: value == "",
    "best_of": lambda value: value == 1 and value is not True,
}


def refuse_unsupported(body: dict[str, Any], harmless: dict[str, _Check]) -> None:
    """Raise a 400 for the first field that asks for something this server can't do."""
    for field in harmless.keys() & body.keys():
        value = body[field]
        if value is not None and not harmless[field](value):
            raise bad_request(f"{field}: not supported by this server; leave it out", field, "unsupported_parameter")
