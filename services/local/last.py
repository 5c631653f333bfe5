"""What `last` means: the request of the last `tokenpath ask` of this folder."""

from __future__ import annotations

from services.local.errors import StackError
from services.local.folder import StackFolder


def resolve(identity: str, folder: StackFolder) -> str:
    """A request id: the given one, or that of the last question. Raises StackError when none was asked."""
    if identity == "last":
        try:
            return folder.last_request.read_text().strip()
        except FileNotFoundError:
            raise StackError('nothing was asked yet in this folder; try `tokenpath ask "Hello!"`') from None
    return identity
