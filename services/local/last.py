"""What `last` means: the request of the last `tokenpath ask` of this folder."""

from __future__ import annotations

from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.hints import tokenpath


def resolve(identity: str, folder: StackFolder) -> str:
    """A request id: the given one, or that of the last question. Raises StackError when none was asked."""
    if identity == "last":
        try:
            return folder.last_request.read_text().strip()
        except FileNotFoundError:
            example = tokenpath('ask "Hello!"')
            raise StackError(f"nothing was asked yet in this folder; try `{example}`") from None
    return identity
