"""Messages -> the text that the model was trained on, by the model's own Jinja template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.tokenization.errors import ChatTemplateError, ModelFilesError


class ChatTemplate:
    """A compiled template. Templates come with the model, so they are untrusted and run in Jinja's sandbox.

    Options, filters and globals are those of Hugging Face transformers, for which such templates are written.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelFilesError(f"the model's chat template cannot be compiled: {error}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The whole prompt, special tokens spelled out. Raises ChatTemplateError when the template refuses."""
        # A key that is null means the same as an absent one to clients, but not to most templates.
        present = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            return self._template.render(
                messages=present,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._tokens,
            )
        except TemplateError as error:
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, KeyError) as error:
            # A template that adds or iterates a value of another kind; such an error's text may quote the message.
            raise ChatTemplateError(
                f"the model's chat template cannot render these messages ({type(error).__name__}); "
                "give each message a role and a content of the kind that this model knows"
            ) from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which is not what models were trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
